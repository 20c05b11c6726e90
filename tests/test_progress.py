from __future__ import annotations

import io

import pytest
from rich.console import Console

from lookahead_bench import progress
from lookahead_bench.progress import LineProgress, LiveProgress, duration, make_progress, speed_of

pytestmark = pytest.mark.unit

ROW = {"error": None, "new_tokens": 41, "decode_seconds": 2.0}


def run_one(bar) -> None:
    with bar:
        bar.phase("starting engine vllm, 1 of 2")
        bar.begin(3, 1)
        for row in (ROW, ROW | {"error": "gone", "new_tokens": None, "decode_seconds": None}):
            bar.working("lookahead W5 N3 G5 · humaneval HumanEval/7 turn 1")
            bar.row(row)
        bar.note("[not markup] engine died")


def test_without_a_terminal_there_are_lines():
    stream = io.StringIO()
    bar = make_progress(stream)
    assert isinstance(bar, LineProgress)
    run_one(bar)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "starting engine vllm, 1 of 2"
    assert lines[1] == "3 rows to measure, 1 are there already"
    assert lines[2].startswith("2/3  lookahead W5 N3 G5 · humaneval HumanEval/7 turn 1  20.0 tokens/s  ")
    assert lines[3].startswith("3/3  ")
    assert "failed" in lines[3]
    assert lines[4] == "[not markup] engine died"


def test_lines_come_now_and_then(monkeypatch):
    stream = io.StringIO()
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = make_progress(stream)
    bar.begin(100, 0)
    for _ in range(100):
        now[0] += 1
        bar.row(ROW)
    lines = stream.getvalue().splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["1/100", "16/100", "31/100", "46/100", "61/100", "76/100", "91/100", "100/100"]  # fmt: skip
    assert lines[1].endswith("1:24 left")


def test_a_terminal_has_one_live_bar():
    stream = io.StringIO()
    bar = LiveProgress(Console(file=stream, force_terminal=True, width=160))
    run_one(bar)
    shown = stream.getvalue()
    for part in ("starting engine vllm", "HumanEval/7", "3/3", "failed", "0:00 left", "[not markup] engine died"):
        assert part in shown


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (ROW, "20.0 tokens/s"),
        (ROW | {"error": "gone"}, "failed"),
        (ROW | {"new_tokens": 1, "decode_seconds": 0.0}, ""),
    ],
)
def test_speed(row, shown):
    assert speed_of(row) == shown


def test_durations():
    assert [duration(s) for s in (None, 3, 75, 3723)] == ["?", "0:03", "1:15", "1:02:03"]
