"""The pages of docs/ and the README: what they show is what is there, and every command in them runs."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead_bench.commandline import preflight, rewrite
from lookahead_bench.regress.__main__ import main as regress
from lookahead_bench.report.__main__ import main as report
from lookahead_bench.report.runs import find_runs
from lookahead_bench.stats import summarise
from lookahead_bench.store import load_results
from lookahead_bench.tables import ROWS_SCHEMA, STEPS_SCHEMA

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
BASELINE = find_runs(ROOT / "results" / "baseline")[-1]
PYTHON = ".venv/bin/python"
OUTSIDE = ("wandb sync",)
"""Commands that need a network or an account."""


def files(page: Path) -> dict[str, str]:
    """The files that a page has the reader write: "`name.py`:" and a block of Python."""
    return dict(re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE))


def output(page: Path, command: str) -> str:
    """What a page shows below a command."""
    return re.search(rf"^\$ {re.escape(command)}\n(.*?)(?=^\$ |^```)", page.read_text(), re.DOTALL | re.MULTILINE)[1]


def commands(page: Path) -> list[list[str]]:
    """What follows "$ " in the page's console blocks; lines that end in a backslash go on."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


COMMANDS = [(page.name, command) for page in PAGES for command in commands(page)]
CHEAP = [command for _, command in COMMANDS if "run.dry=true" in command]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A copy of the committed run, to be reported on."""
    folder = tmp_path_factory.mktemp("results") / "run"
    shutil.copytree(BASELINE, folder)
    return folder


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_command_is_one_that_runs(page, command, results, tmp_path, monkeypatch, capsys):
    """Reports and comparisons are run on the committed run; a benchmark's settings are checked as the command checks them."""
    path = next(each for each in PAGES if each.name == page)
    own = files(path)
    for name, text in own.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    match command:
        case ["make", *targets]:
            targets = [target for target in targets if "=" not in target]
            subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, capture_output=True)
        case [start, *_] if " ".join(command).startswith(OUTSIDE):
            assert shutil.which(start) or (ROOT / ".venv" / "bin" / start).exists()
        case [start, "-m", "lookahead_bench", *arguments] if start == PYTHON:
            monkeypatch.chdir(tmp_path)
            for file in (argument.partition("=")[2] for argument in arguments if argument.startswith("dataset.path=")):
                (tmp_path / file).write_text("")
            preflight(rewrite(arguments))
        case [start, "-m", "lookahead_bench.report", *_] if start == PYTHON:
            assert report([str(results)]) == 0
        case [start, "-m", "lookahead_bench.regress", *arguments] if start == PYTHON:
            options = [argument for argument in arguments if argument.startswith("--exact")]
            assert regress(["--baseline", str(results), "--current", str(results), "--out", str(tmp_path), *options]) == 0
        case [start, "-m", module, *_] if start == PYTHON:
            shown = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
            assert "usage:" in shown.stdout
        case [start, script] if start == PYTHON and script in own:
            (tmp_path / "results").symlink_to(ROOT / "results")
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            shown = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert shown.stdout == output(path, f"{PYTHON} {script}"), shown.stderr
        case [start, script, *_] if start == PYTHON:
            assert (ROOT / script).is_file()
        case ["pip" | "export" | "git", *_]:
            pass
        case _:
            raise AssertionError(f"{page}: how to test {command}?")


def test_a_dry_run_of_the_documentation_is_run():
    command = CHEAP[0]
    assert command[0] == PYTHON
    shown = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "cells" in shown.stdout


def test_a_wrong_key_would_be_seen():
    with pytest.raises(ValueError, match=r"run\.dri: there is no such key"):
        preflight(rewrite(["run.dri=true"]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for address in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not address.startswith("http"):
            assert (page.parent / address).exists(), address


def test_readme_leads_to_every_page():
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS if f"docs/{page.name}" not in readme] == []


def test_configuration_page_is_what_the_tool_writes():
    tool = runpy.run_path(str(ROOT / "tools" / "write_configuration.py"))
    assert (ROOT / "docs" / "configuration.md").read_text() == tool["page"](), "python tools/write_configuration.py writes it anew"


def test_every_column_is_described():
    described = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "measuring.md").read_text()))
    stored = load_results(BASELINE)
    summary = summarise(stored.rows, stored.steps, seed=0)
    columns = {*ROWS_SCHEMA.names, *STEPS_SCHEMA.names, *summary.columns}
    assert sorted(columns - described) == []
