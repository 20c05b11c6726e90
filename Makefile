# Needs make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
RUN := .venv/bin/python
ARGS ?=
SMOKE := +sweep=strategies 'dataset=[humaneval,mt_bench]' dataset.limit=3 decode.max_new_tokens=24 \
	engine.enforce_eager=true tracking.wandb=disabled

.PHONY: help setup bench bench-full bench-smoke bench-parts regress baseline test lock clean

help:
	@echo "make setup       set up .venv and the default model (once, a few minutes)"
	@echo "make bench       set up, then the n-gram sweep on a sample of HumanEval and MT-Bench"
	@echo "make bench-full  the same on all of both data sets (hours)"
	@echo "make bench-smoke every method on three prompts of each data set (minutes)"
	@echo "make bench-parts what the parts cost on the host, in microseconds, beside the last time"
	@echo "make regress     compare that run's exact results with the committed baseline"
	@echo "make baseline    make the committed baseline anew, with the same command"
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

bench-smoke: setup
	$(RUN) -m lookahead_bench $(SMOKE) results_dir=results/smoke run.fresh=true $(ARGS)

bench-parts: setup
	$(RUN) -m pytest benchmarks -o python_files='bench_*.py' -o python_functions='bench_*' \
		--benchmark-storage=file://$(CURDIR)/results/parts --benchmark-autosave --benchmark-compare \
		--benchmark-columns=median,iqr,rounds --benchmark-sort=name $(ARGS)

regress:
	$(RUN) -m lookahead_bench.regress --baseline results/baseline --current results/smoke --exact-only \
		--out results/regress --history results/history.csv

baseline: setup
	rm -rf results/baseline
	$(RUN) -m lookahead_bench $(SMOKE) results_dir=results/baseline

test: setup
	$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

lock: setup
	$(RUN) tools/lock.py

clean:
	@$(PYTHON) -c "import shutil; [shutil.rmtree(f, ignore_errors=True) for f in \
	('.venv', '.pytest_cache', '.hypothesis', 'build', 'lookahead_bench.egg-info')]"
