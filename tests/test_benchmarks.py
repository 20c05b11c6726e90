"""Every benchmark of the parts runs, once and untimed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead_bench.strategy import strategies

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.unit
def test_the_benchmarks_of_the_makefile_run():
    recipe = re.search(r"^bench-parts:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    options = shlex.split(recipe.replace("\\\n", " ").split("-m pytest")[1].replace("$(CURDIR)/results/parts", "unused").replace("$(ARGS)", ""))
    own = [option for option in options if not option.startswith("--benchmark-")]
    command = [sys.executable, "-m", "pytest", *own, "--benchmark-disable", "-v", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert all(f"bench_draft_and_observe[{name}]" in run.stdout for name in strategies())
