"""The command end to end, as a user runs it: one sweep, its results, and what happens when it is repeated or stopped."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from omegaconf import OmegaConf

from lookahead_bench import command
from lookahead_bench.config import CONF
from lookahead_bench.errors import EngineError, InputError
from lookahead_bench.store import load_results

SWEEP = [
    "+sweep=ngram", "sweep.ngram=[2,3]", "sweep.window=3", "sweep.branches=3", "sweep.baselines=[vllm,autoregressive]",
    "dataset=[humaneval,mt_bench]", "dataset.limit=1", "decode.max_new_tokens=16", "run.warmup_tokens=2",
    "engine.enforce_eager=true", "engine.kv_cache_gib=0.25", "tracking.wandb=offline",
]  # fmt: skip
LABELS = ["vllm", "autoregressive", "lookahead W3 N2 G3", "lookahead W3 N3 G3"]


def run(argv: list[str], folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(command_line(argv), capture_output=True, text=True, cwd=folder, env=environment())


def command_line(argv: list[str]) -> list[str]:
    return [sys.executable, "-m", "lookahead_bench", *argv]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CONF.parent), "COLUMNS": "120"}


@pytest.fixture(scope="module")
def swept(tmp_path_factory, model_source) -> tuple[Path, subprocess.CompletedProcess]:
    """The folder in which one small sweep ran, and what the command said."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, run(SWEEP, folder)


def run_folder(folder: Path) -> Path:
    (found,) = [path.parent for path in folder.glob("results/ngram/*/rows.parquet")]
    return found


@pytest.mark.model
def test_a_sweep_measures_every_cell_on_every_prompt_and_turn(swept):
    folder, done = swept
    assert done.returncode == 0, done.stderr
    rows = load_results(run_folder(folder)).rows
    found = {(row.label, row.dataset, row.turn) for row in rows.itertuples()}
    assert found == {(label, *turn) for label in LABELS for turn in (("humaneval", 0), ("mt_bench", 0), ("mt_bench", 1))}
    assert len(rows) == len(found)
    assert rows["error"].isna().all() and (rows["new_tokens"] == 16).all()
    assert set(rows["dtype"]) == {"float32"}


@pytest.mark.model
def test_float32_outputs_are_those_of_plain_decoding(swept):
    folder, _ = swept
    rows = load_results(run_folder(folder)).rows
    assert set(rows["equivalence"]) == {"identical"}
    for _, same in rows.groupby(["dataset", "prompt_id", "turn"]):
        assert len({tuple(ids) for ids in same["token_ids"]}) == 1


@pytest.mark.model
def test_the_methods_drafted_and_the_plain_ones_did_not(swept):
    folder, _ = swept
    summary = load_results(run_folder(folder)).summary
    lookahead = summary[summary["strategy"] == "lookahead"]
    assert (lookahead["drafted"] > 0).all() and set(lookahead["ngram"]) == {2, 3}
    assert (summary.loc[summary["strategy"] != "lookahead", "drafted"] == 0).all()


@pytest.mark.model
def test_everything_a_user_is_told_of_is_there(swept):
    folder, done = swept
    run_of = run_folder(folder)
    for name in ("rows.parquet", "steps.parquet", "summary.csv", "config.yaml", "provenance.json", "report.html"):
        assert (run_of / name).stat().st_size > 0
    plots = sorted(run_of.glob("plots/*.png"))
    assert plots
    told = [run_of / "report.html", run_of / "wandb", *plots]
    assert all(str(path.relative_to(folder)) in done.stdout for path in told)
    assert all(label in done.stdout for label in LABELS)
    # vLLM's own log is in files.
    assert "INFO" not in done.stdout + done.stderr
    assert all((run_of / "logs" / f"engine-{role}.log").stat().st_size > 0 for role in ("vllm", "plugin"))
    assert [path.name for path in folder.iterdir()] == ["results"]
    assert OmegaConf.load(run_of / "config.yaml").sweep.ngram == [2, 3]


@pytest.mark.model
def test_the_same_command_again_repeats_nothing(swept):
    folder, _ = swept
    before = load_results(run_folder(folder))
    logs = {path: path.stat().st_size for path in before.folder.glob("logs/engine-*.log")}
    again = run(SWEEP, folder)
    assert again.returncode == 0, again.stderr
    after = load_results(run_folder(folder))
    pd.testing.assert_frame_equal(after.rows, before.rows)
    assert {path: path.stat().st_size for path in before.folder.glob("logs/engine-*.log")} == logs
    assert all(label in again.stdout for label in LABELS)


@pytest.mark.model
def test_a_dry_run_estimates_from_what_was_measured_and_leaves_nothing(swept):
    folder, _ = swept
    before = sorted(folder.rglob("*"))
    done = run([*SWEEP, "run.dry=true"], folder)
    assert done.returncode == 0, done.stderr
    assert "8 cells in float32, 12 outputs, 2 engines" in done.stdout and "earlier runs" in done.stdout
    assert sorted(folder.rglob("*")) == before


@pytest.mark.model
def test_a_job_of_a_multirun_that_fails_does_not_stop_the_others(tmp_path, model_source):
    short = ["--multirun", "engine.max_model_len=64,2048", "decode.max_new_tokens=16"]
    done = run([*short, "dataset=humaneval", "dataset.limit=1", "run.dry=true"], tmp_path)
    assert done.returncode == 2
    assert "error: engine.max_model_len=64: must be at least " in done.stderr
    assert "sweep single: 5 cells" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.model
def test_ctrl_c_ends_the_engines_and_says_how_to_go_on(tmp_path, model_source):
    process = subprocess.Popen(
        command_line(SWEEP), cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        while "starting engine" not in (line := process.stderr.readline()):
            assert line, "the command ended before an engine was started"
        deadline = time.monotonic() + 60
        while not (engines := engines_below(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert engines
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1].startswith("interrupted; run the same command again")
    assert "Traceback" not in rest
    psutil.wait_procs(engines, timeout=10)
    assert not any(engine.is_running() for engine in engines)


def engines_below(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if "lookahead_bench.engine.session" in " ".join(child.cmdline())]


@pytest.mark.unit
@pytest.mark.parametrize(
    "raised, status, said",
    [
        (InputError("strategy.window=0: must be\n more"), 2, "error: strategy.window=0: must be more"),
        (EngineError("no engine"), 1, "error: no engine"),
        (OSError(errno.ENOSPC, "No space left on device", "r/rows.parquet"), 2, "error: r/rows.parquet: No space left"),
        (KeyError("surprise"), 1, "error: KeyError: 'surprise'"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_status(raised, status, said, monkeypatch, capsys):
    def broken(_):
        raise raised

    monkeypatch.setattr(command, "run", broken)
    assert command.run_to_status(OmegaConf.create()) == status
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)


def summary_of(**changes: object) -> pd.DataFrame:
    cell = {
        "label": "lookahead W5 N5 G5", "strategy": "lookahead", "executor": "tree", "dtype": "float32",
        "mismatches": 0, "failures": 0, "drafted": 40, "step_compression": 1.5,
    }  # fmt: skip
    plain = cell | {"label": "vllm", "strategy": "vllm", "executor": "stock", "drafted": 0, "step_compression": 1.0}
    return pd.DataFrame([plain, cell | changes])


@pytest.mark.unit
@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, []),
        ({"mismatches": 2}, ["float32 outputs that differ from plain decoding: 2"]),
        ({"mismatches": 2, "dtype": "bfloat16"}, []),
        ({"failures": 1}, ["failed requests: 1"]),
        ({"drafted": 0}, ["lookahead W5 N5 G5 drafted nothing at all"]),
        ({"drafted": 0, "strategy": "autoregressive"}, []),
        ({"drafted": 0, "step_compression": float("nan")}, []),
    ],
)
def test_what_makes_a_run_fail(changes, said):
    assert command.judge(summary_of(**changes)) == said


@pytest.mark.unit
def test_a_method_may_draft_nothing_on_one_data_set():
    twice = pd.concat([summary_of(drafted=0), summary_of()])
    assert command.judge(twice) == []
