"""Whether answers solve their problems: the code in an answer, run on the problem's own tests (pass@1)."""
