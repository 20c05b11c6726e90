"""The small benchmark of every method, as `make bench-smoke` runs it, against the committed baseline."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead_bench.regress.__main__ import main as regress

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "results" / "baseline"


def smoke() -> list[str]:
    """The arguments of `make bench-smoke`."""
    makefile = (ROOT / "Makefile").read_text()
    return shlex.split(re.search(r"^SMOKE := ((?:.*\\\n)*.*)", makefile, re.MULTILINE)[1].replace("\\\n", " "))


@pytest.mark.model
def test_exact_results_are_those_of_the_committed_baseline(tmp_path, capsys):
    command = [sys.executable, "-m", "lookahead_bench", *smoke(), f"results_dir={tmp_path}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    status = regress(["--baseline", str(BASELINE), "--current", str(tmp_path), "--exact-only", "--out", str(tmp_path / "out")])
    assert status == 0, capsys.readouterr().out
