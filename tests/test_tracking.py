"""Weights & Biases: what a run's own file holds, when there is none, and what happens when it fails."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lookahead_bench import tracking
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.live import LiveCells
from lookahead_bench.plan import Plan
from lookahead_bench.records import Cell, EngineSpec, StrategySpec
from lookahead_bench.report.plots import speedup_over
from lookahead_bench.stats import SETTINGS
from lookahead_bench.tracking import NullTracker, WandbTracker, check_tracking, make_tracker
from tests import example_results
from tests.wandb_file import OfflineRun, read_run

pytestmark = pytest.mark.unit

PLAN = Plan(
    sweep="ngram",
    cells=tuple(
        Cell(
            cell_id=f"humaneval-{name}-{ngram}",
            dataset="humaneval",
            strategy=StrategySpec(name, {"window": 5, "ngram": ngram, "branches": 5} if ngram else {}),
            engine=EngineSpec(model="smollm2-135m", role=name),
            max_new_tokens=64,
            is_baseline=name == "vllm",
        )
        for name, ngram in (("vllm", None), ("lookahead", 2), ("lookahead", 3))
    ),
    repeats=1,
    seed=0,
    warmup_tokens=8,
    plan_id="plan-1",
)


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    """A home without keys, whatever the machine has."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def results(tmp_path):
    return example_results.store_run(tmp_path / "results", methods=example_results.METHODS[:5])


def track(results, exit_code: int = 0, name: str = "run-1", mode: str = "offline"):
    """A whole sweep as the harness tells it."""
    tracker = make_tracker(mode, results.folder, "test")
    tracker.start(name, "ngram", {"run": {"seed": 3}}, PLAN)
    for row in results.rows.head(5).to_dict("records"):
        tracker.row(row)
    tracker.row({**row, "error": "it broke", "new_tokens": None, "decode_steps": None})
    for cell in results.summary.to_dict("records"):
        tracker.cell(cell)
    tracker.finish(results, [speedup_over(results, "ngram").save(results.folder / "plots", "speedup_over_ngram")], exit_code)
    return tracker


def only_run(folder: Path) -> tuple[Path, OfflineRun]:
    ((files, run),) = all_runs(folder)
    return files, run


def all_runs(folder: Path) -> list[tuple[Path, OfflineRun]]:
    """Files folder and content of each run, as soon as W&B's own process has written its last record."""
    found = []
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        deadline = time.monotonic() + 20
        while (run := read_run(path)).exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
        found.append((path.parent / "files", run))
    return found


def test_offline_file_has_everything(results, monkeypatch):
    monkeypatch.setattr(tracking, "TABLE_SECONDS", 0.0)
    tracker = track(results)
    files, run = only_run(results.folder)
    assert tracker.folder == results.folder / "wandb" and tracker.url is None
    assert (run.name, run.group, run.job_type, run.project) == ("run-1", "ngram", "sweep", "test")
    assert {"lookahead", "vllm", "humaneval", "float32"} == set(run.tags)
    assert run.config["run"] == {"seed": 3} and run.config["plan_id"] == "plan-1"
    assert run.config["provenance"] == results.provenance
    assert run.exit_code == 0

    live = [line for line in run.history if "rows_done" in line]
    assert [line["rows_done"] for line in live] == [1, 2, 3, 4, 5, 6]
    first = results.rows.iloc[0]
    assert live[0]["tokens_per_second/humaneval/vllm"] == pytest.approx(
        (first["new_tokens"] - 1) / first["decode_seconds"]
    )
    assert live[0]["step_compression/humaneval/vllm"] == 1.0
    assert "tokens_per_second/humaneval/vllm" not in live[5]  # a failure is no speed
    assert run.metrics["tokens_per_second/*"] == "rows_done"

    tables = [line for line in run.history if line.get("cells/_type") == "table-file"]
    # One while it ran, after the first row; then one for each cell that finished.
    assert [line["cells/nrows"] for line in tables] == [1, *range(1, len(results.summary) + 1)]
    live_table = json.loads((files / tables[0]["cells/path"]).read_text())
    (line,) = (dict(zip(live_table["columns"], values)) for values in live_table["data"])
    assert (line["label"], line["verdict"], line["rows_measured"], line["failures"]) == ("vllm", "running", 1, 0)
    assert line["tokens_per_second"] == pytest.approx((first["new_tokens"] - 1) / first["decode_seconds"])
    table = json.loads((files / tables[-1]["cells/path"]).read_text())
    assert table["columns"] == list(tracking.CELL_COLUMNS)
    speedups = [line[table["columns"].index("speedup")] for line in table["data"]]
    assert speedups == pytest.approx(results.summary["speedup"].tolist())
    assert "artifact" in run.kinds

    (histogram,) = [
        line for line in run.history if "acceptance/humaneval/lookahead_W5_N3_G5/_type" in line
    ]
    cell = results.summary.set_index(["dataset", "ngram"]).loc[("humaneval", 3)]
    accepted = results.steps.loc[results.steps["cell_id"] == cell["cell_id"], "accepted"]
    counts = histogram["acceptance/humaneval/lookahead_W5_N3_G5/values"]
    assert counts == [int((accepted == tokens).sum()) for tokens in range(accepted.max() + 1)]
    assert len(histogram["acceptance/humaneval/lookahead_W5_N3_G5/bins"]) == len(counts) + 1

    images = {
        key.split("/")[1]: value
        for line in run.history
        for key, value in line.items()
        if key.startswith("plots/") and key.endswith("/path")
    }
    assert "speedup_over_ngram" in images
    assert all((files / path).read_bytes().startswith(b"\x89PNG") for path in images.values())

    assert run.summary["summary/speedup/humaneval/lookahead_W5_N3_G5"] == pytest.approx(cell["speedup"])
    assert run.summary["best/humaneval/method"].startswith("lookahead")


def test_failed_cells_are_visible(tmp_path):
    def spoil(row):
        if row["ngram"] != 2 or row["prompt_id"] != "HumanEval/3":
            return row
        nothing = dict.fromkeys(("new_tokens", "decode_steps", "decode_seconds", "drafted_tokens"))
        return {**row, **nothing, "error": "it broke", "token_ids": []}

    results = example_results.store_run(tmp_path / "results", example_results.METHODS[:5], 4, change=spoil)
    track(results, exit_code=1)
    files, run = only_run(results.folder)
    assert run.summary["failed_rows"] == 1 and run.summary["failed_cells"] == ["humaneval/lookahead_W5_N2_G5"]
    assert "failures" in run.tags and run.exit_code == 1
    (sent,) = [line for line in run.history if line.get("failures/_type") == "table-file"]
    table = json.loads((files / sent["failures/path"]).read_text())
    (line,) = (dict(zip(table["columns"], values)) for values in table["data"])
    assert (line["prompt_id"], line["label"], line["error"]) == ("HumanEval/3", "lookahead W5 N2 G5", "it broke")
    cells = json.loads((files / [line for line in run.history if "cells/path" in line][-1]["cells/path"]).read_text())
    notes = {line[cells["columns"].index("note")] for line in cells["data"]}
    assert "1 of 4 requests failed" in notes


def test_a_resumed_sweep_goes_on_counting(results):
    rows = results.rows.to_dict("records")
    first = make_tracker("offline", results.folder, "test")
    first.start("run-1", "ngram", {}, PLAN)
    for row in rows[:3]:
        first.row(row)
    first.row({**rows[3], "error": "it broke"})
    first.finish(None, [], 1)
    again = make_tracker("offline", results.folder, "test")
    again.start("run-1", "ngram", {}, PLAN, [*rows[:3], {**rows[3], "error": "it broke"}])
    for row in rows[3:6]:
        again.row(row)
    again.finish(results, [], 0)
    before, after = (run for _, run in sorted(all_runs(results.folder), key=lambda found: found[0]))
    assert before.run_id == after.run_id
    assert [line["rows_done"] for line in before.history if "rows_done" in line] == [1, 2, 3, 4]
    # The row that had failed is done now; it is the fourth that is done.
    assert [line["rows_done"] for line in after.history if "rows_done" in line] == [4, 5, 6]
    # Its steps come after those of the first part, which W&B would otherwise drop.
    steps = [line["_step"] for run in (before, after) for line in run.history]
    assert steps == sorted(set(steps))


def test_what_is_told_while_it_runs_is_the_ratio_over_shared_prompts():
    cells = LiveCells()
    plain = {"cell_id": "a", "is_baseline": True, "label": "vllm", "error": None, "turn": 0, "repeat": 0, "decode_steps": 10}
    plain |= dict.fromkeys(SETTINGS, "same")
    method = {**plain, "cell_id": "b", "is_baseline": False, "label": "lookahead", "decode_steps": 5}
    for prompt, seconds in (("1", 1.0), ("2", 3.0)):
        cells.add({**plain, "prompt_id": prompt, "new_tokens": 11, "decode_seconds": seconds})
    cells.add({**method, "prompt_id": "1", "new_tokens": 11, "decode_seconds": 0.5})
    cells.add({**method, "prompt_id": "2", "error": "it broke", "new_tokens": None, "decode_seconds": None})
    line = cells.lines()["b"]
    assert (line["speedup"], line["step_compression"], line["tokens_per_second"]) == (2.0, 2.0, 20.0)
    assert (line["verdict"], line["failures"], line["rows_measured"], line["prompts"]) == ("running", 1, 1, 1)


def test_cells_that_finish_together_are_sent_together(results):
    track(results)
    files, run = only_run(results.folder)
    tables = [line for line in run.history if line.get("cells/_type") == "table-file"]
    assert len(tables) < len(results.summary)
    assert tables[-1]["cells/nrows"] == len(results.summary)


def test_failed_job_is_shown_as_failed_and_resumed_in_the_same_run(results):
    first = make_tracker("offline", results.folder, "test")
    first.start("run-1", "ngram", {}, PLAN)
    first.finish(None, [], 1)
    _, run = only_run(results.folder)
    assert run.exit_code == 1

    track(results)
    runs = [again for _, again in all_runs(results.folder)]
    assert {again.run_id for again in runs} == {run.run_id}
    assert {again.exit_code for again in runs} == {0, 1}


def test_two_jobs_of_one_process_are_two_finished_runs(tmp_path):
    methods = example_results.METHODS[:2]
    folders = [example_results.store_run(tmp_path / name, methods=methods) for name in ("a", "b")]
    for results, exit_code in zip(folders, (0, 1), strict=True):
        track(results, exit_code, name=results.folder.parent.parent.name)
    (_, first), (_, second) = (only_run(results.folder) for results in folders)
    assert (first.name, first.exit_code, second.name, second.exit_code) == ("a", 0, "b", 1)
    assert first.run_id != second.run_id


def test_disabled_never_imports_wandb(results):
    code = (
        "import sys\n"
        "from lookahead_bench.tracking import make_tracker\n"
        f"tracker = make_tracker('disabled', {str(results.folder)!r}, 'test')\n"
        "tracker.start('name', 'group', {}, None); tracker.row({}); tracker.cell({})\n"
        "tracker.finish(None, [], 0)\n"
        "assert 'wandb' not in sys.modules and tracker.folder is None and tracker.url is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
    assert not (results.folder / "wandb").exists()


def test_failing_tracker_is_said_once_and_stops(results, capsys):
    tracker = make_tracker("offline", results.folder, "test")
    tracker.start("run-1", "ngram", {}, PLAN)
    tracker.row({"no": "such columns"})
    tracker.row({"no": "such columns"})
    tracker.finish(results, [], 0)
    err = capsys.readouterr().err
    assert err.count("W&B tracking stopped") == 1 and len(err.strip().splitlines()) == 1
    assert only_run(results.folder)[1].exit_code == 1

    track(results, name="the next job of the same process")
    assert capsys.readouterr().err == ""


def test_unwritable_folder_costs_nothing(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    tracker = WandbTracker("offline", blocked, "test")
    tracker.start("run-1", "ngram", {}, PLAN)
    tracker.row({})
    tracker.finish(None, [], 1)
    assert capsys.readouterr().err.count("W&B tracking stopped") == 1


def test_killed_service_costs_nothing(results):
    """W&B's own process dies in the middle: the command ends well and soon."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import tests.test_tracking as t\n"
        "from lookahead_bench.store import load_results\n"
        f"results = load_results({str(results.folder)!r})\n"
        "tracker = t.make_tracker('offline', results.folder, 'test')\n"
        "tracker.start('n', 'g', {}, t.PLAN)\n"
        "me = os.getpid()\n"
        "for stat in Path('/proc').glob('[0-9]*/stat'):\n"
        "    name, rest = stat.read_text().rsplit(')', 1)\n"
        "    if 'wandb' in name and int(rest.split()[1]) == me:\n"
        "        os.kill(int(stat.parent.name), signal.SIGKILL)\n"
        "for row in results.rows.to_dict('records'): tracker.row(row)\n"
        "tracker.finish(results, [], 0)\n"
        "print('went on')\n"
    )
    environment = dict(os.environ)
    environment.pop("WANDB_SERVICE", None)  # else it would use the W&B process of these tests
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=Path(__file__).parent.parent,
    )
    assert "went on" in ended.stdout, ended.stderr
    assert ended.returncode == 0
    assert len(ended.stderr.splitlines()) == 1 and "W&B tracking stopped" in ended.stderr


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_):
        """Keep quiet."""


@pytest.fixture
def host():
    """A host that answers; its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_mode_is_decided_by_key_and_reach(host, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_BASE_URL", host)
    assert check_tracking("auto") == "offline"
    with pytest.raises(InputError, match="no API key"):
        check_tracking("online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert check_tracking("auto") == check_tracking("online") == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert check_tracking("auto") == "offline"
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert check_tracking("auto") == "offline"
    with pytest.raises(InputError, match="can't be reached") as raised:
        check_tracking("online")
    assert "\n" not in str(raised.value)


def test_key_may_be_in_netrc(host, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_BASE_URL", host)
    entries = tmp_path / "netrc"
    entries.write_text("machine 127.0.0.1 login user password " + "0" * 40 + "\n")
    entries.chmod(0o600)
    monkeypatch.setenv("NETRC", str(entries))
    assert check_tracking("auto") == "online"
    entries.write_text("machine elsewhere login user password x\n")
    assert check_tracking("auto") == "offline"


def test_modes():
    assert isinstance(make_tracker("disabled", "anywhere", "test"), NullTracker)
    assert check_tracking("auto") == "offline"
    with pytest.raises(ConfigError, match="tracking.wandb='on'"):
        check_tracking("on")
