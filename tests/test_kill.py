"""Fifty writers of one run, each killed at a random instant, come to what one undisturbed writer does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from lookahead_bench.store import Results, load_results
from lookahead_bench.tables import Tables
from tests import kill_writer
from tests.kill_writer import ROWS, STEPS

pytestmark = pytest.mark.unit

KILLS = 50


@contextmanager
def writers() -> Iterator[Callable[..., int]]:
    """Runs a writer on (results, log, kill) and answers its exit status; see `kill_writer`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, kill_writer.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:

        def run(results: Path, log: Path, kill: tuple[int, float] | None = None) -> int:
            process.stdin.write(json.dumps([str(results), str(log), kill]) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


def logged(log: Path) -> list[tuple[str, int]]:
    lines = log.read_text().splitlines() if log.is_file() else []
    return [(word, int(number)) for word, number in (line.split() for line in lines)]


def check_whole(rows: pd.DataFrame, steps: pd.DataFrame) -> set[int]:
    """Every row has all its tokens and steps, none is there twice; the numbers of the rows."""
    numbers = [int(tokens[0]) for tokens in rows["token_ids"]]
    assert len(numbers) == len(set(numbers))
    assert all(len(tokens) == STEPS + 1 for tokens in rows["token_ids"])
    counts = steps.groupby(["cell_id", "prompt_id"]).size().to_dict()
    assert all(counts[key] == STEPS for key in zip(rows["cell_id"], rows["prompt_id"]))
    return set(numbers)


def run_folder(results: Path) -> Path:
    [folder] = (path for path in (results / "kill").iterdir() if path.is_dir())
    return folder


def in_order(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    by = ["cell_id", "prompt_id"]
    return (
        results.rows.sort_values(by, ignore_index=True),
        results.steps.sort_values([*by, "step"], ignore_index=True),
    )


def test_fifty_kills_lose_nothing_repeat_nothing_and_end_in_the_same_summary(tmp_path):
    instants, killed_in_between = random.Random(0), 0
    log = tmp_path / "log"
    with writers() as run:
        for _ in range(KILLS):
            status = run(tmp_path / "killed", log, (instants.randrange(4), instants.random()))
            assert status in (0, -signal.SIGALRM)
            if list((tmp_path / "killed").glob("kill/*/rows.parquet")):
                folder = run_folder(tmp_path / "killed")
                # Each file by itself is whole, and what the rows say is in the steps.
                check_whole(pd.read_parquet(folder / "rows.parquet"), pd.read_parquet(folder / "steps.parquet"))
                found = check_whole(*Tables.read(folder)[0].frames())
                assert {number for word, number in logged(log) if word == "done"} <= found
                killed_in_between += status != 0 and 0 < len(found) < ROWS
        assert run(tmp_path / "killed", log) == 0
        assert run(tmp_path / "undisturbed", tmp_path / "other log") == 0
    assert killed_in_between > KILLS // 2
    events = logged(log)
    done_again = [event for place, event in enumerate(events) if event[0] == "do" and ("done", event[1]) in events[:place]]
    assert done_again == []
    assert max(Counter(number for word, number in events if word == "done").values()) == 1

    resumed, undisturbed = (load_results(run_folder(tmp_path / name)) for name in ("killed", "undisturbed"))
    assert len(resumed.rows) == ROWS
    for found, expected in zip(in_order(resumed), in_order(undisturbed)):
        pd.testing.assert_frame_equal(found, expected)
    pd.testing.assert_frame_equal(resumed.summary, undisturbed.summary)
    assert (resumed.summary["identical"] == ROWS // 2).all()
