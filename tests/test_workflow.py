"""The CI workflow runs the Makefile's targets, and shows and keeps what they leave, also where one of them fails."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
BENCHMARK = JOBS["benchmark"]["steps"]


def summary_step() -> dict:
    (step,) = (step for step in BENCHMARK if "GITHUB_STEP_SUMMARY" in step.get("run", ""))
    return step


def recipe(target: str) -> str:
    """The commands of a target, long lines joined."""
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1].replace("\\\n", " ")


def test_what_it_runs_are_targets_of_the_makefile():
    runs = [step["run"] for job in JOBS.values() for step in job["steps"] if step.get("run", "").startswith("make ")]
    assert runs == ["make test", "make bench-smoke", "make regress"]
    for run in runs:
        subprocess.run([*run.split(), "-n"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("regressed", [True, False], ids=["compared", "no results"])
def test_the_job_summary_has_the_comparison_or_says_that_there_is_none(regressed, tmp_path):
    step, summary = summary_step(), tmp_path / "summary.md"
    assert step["if"] == "always()"
    if regressed:
        (tmp_path / "results" / "regress").mkdir(parents=True)
        (tmp_path / "results" / "regress" / "regress.md").write_text("# A table\n")
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, check=True, env={**os.environ, "GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text() == ("# A table\n" if regressed else "No comparison with the baseline: the benchmark left no results.\n")


def test_plots_and_history_are_uploaded_whatever_happened():
    (upload,) = (step for step in BENCHMARK if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert upload["if"] == "always()"
    paths = upload["with"]["path"].split()
    out, history = (re.search(rf"--{option} (\S+)", recipe("regress"))[1] for option in ("out", "history"))
    results = re.search(r"results_dir=(\S+)", recipe("bench-smoke"))[1]
    assert {out, history, results} <= set(paths)
    assert f"{out}/regress.md" in summary_step()["run"]


def test_failed_results_are_compared_too():
    (step,) = (step for step in BENCHMARK if step.get("run") == "make regress")
    assert step["if"] == "${{ !cancelled() }}"
