"""Benchmarks of the parts, without an engine: `make bench-parts`. What is timed says each function's docstring."""
