# Needs make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
RUN := .venv/bin/python
ARGS ?=

.PHONY: help setup bench bench-full test lock clean

help:
	@echo "make setup       set up .venv and the default model (once, a few minutes)"
	@echo "make bench       set up, then the n-gram sweep on a sample of HumanEval and MT-Bench"
	@echo "make bench-full  the same on all of both data sets (hours)"
	@echo "make test        set up, then run the tests"
	@echo "make lock        resolve requirements-cpu.lock anew"
	@echo "make clean       remove .venv and caches; results stay"
	@echo "ARGS=... adds arguments to the command (bench) or to pytest (test); PYTHON=... picks the Python"

setup:
	@$(if $(PYTHON),,echo "make setup: no Python 3.11 or newer found (make PYTHON=...)"; exit 2;) \
	$(PYTHON) tools/setup.py

bench: setup
	$(RUN) -m lookahead_bench +sweep=ngram 'dataset=[humaneval,mt_bench]' dataset.limit=6 decode.max_new_tokens=64 $(ARGS)

bench-full: setup
	$(RUN) -m lookahead_bench +sweep=ngram 'dataset=[humaneval,mt_bench]' dataset.limit=null $(ARGS)

test: setup
	$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

lock: setup
	$(RUN) tools/lock.py

clean:
	@$(PYTHON) -c "import shutil; [shutil.rmtree(f, ignore_errors=True) for f in \
	('.venv', '.pytest_cache', '.hypothesis', 'build', 'lookahead_bench.egg-info')]"
