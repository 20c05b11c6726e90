from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import lookahead_bench
from lookahead_bench.errors import InputError
from lookahead_bench.stats import summarise
from lookahead_bench.store import ResultStore, load_results
from lookahead_bench.tables import Key

pytestmark = pytest.mark.unit

STEPS = 7


def make_row(number: int, **values):
    row = {
        "cell_id": f"cell{number % 3}",
        "model": "m",
        "label": "lookahead W5 N3 G5",
        "dataset": "d",
        "prompt_id": str(number),
        "turn": 0,
        "repeat": 0,
        "strategy": "lookahead",
        "window": 5,
        "dtype": "float32",
        "concurrency": 1,
        "is_baseline": False,
        "new_tokens": STEPS + 1,
        "decode_steps": STEPS,
        "decode_seconds": 0.1 * number,
        "token_ids": [number] * (STEPS + 1),
        "text": 'half a line\nand "quotes"',
        "equivalence": "unchecked",
    }
    return row | values


def make_steps(number: int):
    return [{"in_flight": 4, "accepted": 1, "seconds": number + step / 10} for step in range(STEPS)]


def key_of(number: int) -> Key:
    return Key(f"cell{number % 3}", str(number), 0, 0)


def check_whole(rows: pd.DataFrame, steps: pd.DataFrame) -> set[int]:
    """Every row with all its tokens and steps, none twice; the numbers of the rows."""
    numbers = [int(prompt) for prompt in rows["prompt_id"]]
    assert len(numbers) == len(set(numbers))
    counts = steps.groupby("prompt_id").agg(count=("step", "size"), last=("step", "max"))
    for number, token_ids in zip(numbers, rows["token_ids"]):
        assert list(token_ids) == [number] * (STEPS + 1)
        assert tuple(counts.loc[str(number)]) == (STEPS, STEPS - 1)
    return set(numbers)


def test_what_is_stored_comes_back(tmp_path):
    with ResultStore.open_run(tmp_path, "ngram", "plan") as store:
        for number in range(1, 4):
            store.add(make_row(number), make_steps(number))
        store.write_config("run:\n  seed: 3\n")
        store.write_provenance({"started_at": "then", "host": "a"})
        store.write_provenance({"ended_at": "now"})
        store.write_summary(summarise(*store.frames(), 0).assign(window=None, verdict="asked of the file"))
        assert store.done() == {("cell1", "1", 0, 0), ("cell2", "2", 0, 0), ("cell0", "3", 0, 0)}
        assert store.folder.parent == tmp_path / "ngram"
    results = lookahead_bench.load_results(store.folder)
    assert check_whole(results.rows, results.steps) == {1, 2, 3}
    assert results.rows["decode_seconds"].tolist() == [0.1 * number for number in range(1, 4)]
    assert results.rows["window"].dtype == results.rows["ngram"].dtype == "Int64"
    assert results.rows["ngram"].isna().all()
    assert results.rows["error"].isna().all()
    assert results.rows["text"].iloc[0] == make_row(1)["text"]
    assert results.config == {"run": {"seed": 3}}
    assert results.provenance == {"started_at": "then", "host": "a", "ended_at": "now"}
    assert set(results.summary["verdict"]) == {"asked of the file"}
    assert results.steps["seconds"].tolist()[:2] == [1.0, 1.1]
    assert (store.folder / "journal.jsonl").stat().st_size == 0


@pytest.mark.parametrize("cheap_seconds", [60.0, 0.0])
def test_rows_and_steps_can_be_read_while_the_store_is_open(tmp_path, monkeypatch, cheap_seconds):
    """Whole at every instant; with all that was added where a checkpoint is cheap, and through the journal anyway."""
    monkeypatch.setattr("lookahead_bench.store._CHEAP_SECONDS", cheap_seconds)
    with ResultStore.open_run(tmp_path, "", "plan") as store:
        assert store.folder.parent.name == "single"
        assert pq.read_table(store.folder / "rows.parquet").num_rows == 0
        for number in range(3):
            store.add(make_row(number), make_steps(number))
            added = set(range(number + 1))
            found = check_whole(*(pd.read_parquet(store.folder / f"{name}.parquet") for name in ("rows", "steps")))
            assert found == added if cheap_seconds else found <= added
            results = load_results(store.folder)
            assert check_whole(results.rows, results.steps) == added


def test_the_same_plan_is_completed_and_another_is_not(tmp_path):
    with ResultStore.open_run(tmp_path, "s", "plan-a") as store:
        store.add(make_row(1), make_steps(1))
        first = store.folder
    with ResultStore.open_run(tmp_path, "s", "plan-a") as store:
        assert store.folder == first
        assert store.done() == {key_of(1)}
        with pytest.raises(ValueError, match="stored already"):
            store.add(make_row(1), make_steps(1))
        store.add(make_row(2), make_steps(2))
    assert check_whole(load_results(first).rows, load_results(first).steps) == {1, 2}
    with ResultStore.open_run(tmp_path, "s", "plan-b") as store:
        assert store.folder != first
        assert store.done() == set()
    with ResultStore.open_run(tmp_path, "s", "plan-a", fresh=True) as store:
        assert store.folder != first
        newest = store.folder
    with ResultStore.open_run(tmp_path, "s", "plan-a") as store:
        assert store.folder == newest


def test_plans_that_begin_alike_are_told_apart(tmp_path):
    with ResultStore.open_run(tmp_path, "s", "0123456789abc") as store:
        first = store.folder
    with ResultStore.open_run(tmp_path, "s", "0123456789xyz") as store:
        assert store.folder != first


def test_runs_that_start_at_once_never_share_a_folder(tmp_path):
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(lambda _: ResultStore.open_run(tmp_path, "s", "plan"), range(6)))
    assert len({store.folder for store in stores}) == 6
    for store in stores:
        store.close()


def test_a_failed_row_is_kept_and_tried_again(tmp_path):
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        store.add(make_row(1, error="gone", new_tokens=None, token_ids=None))
        store.add(make_row(2), make_steps(2))
        assert store.done() == {key_of(2)}
    rows = load_results(store.folder).rows
    assert rows["error"].iloc[0] == "gone"
    assert rows["new_tokens"].isna().tolist() == [True, False]
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        store.add(make_row(1), make_steps(1))
        assert store.done() == {key_of(1), key_of(2)}
    results = load_results(store.folder)
    assert check_whole(results.rows, results.steps) == {1, 2}
    assert results.rows["error"].isna().all()


def test_verdicts_can_be_set_later(tmp_path):
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        for number in range(3):
            store.add(make_row(number), make_steps(number))
        store.amend({key_of(1): {"equivalence": "near_tie", "first_divergence": 4, "divergence_margin": 1e-5}})
        assert store.row(key_of(1))["equivalence"] == "near_tie"
        with pytest.raises(KeyError):
            store.amend({key_of(9): {"equivalence": "identical"}})
        with pytest.raises(ValueError, match="verdikt"):
            store.amend({key_of(1): {"verdikt": "identical"}})
    rows = load_results(store.folder).rows
    assert rows["equivalence"].tolist() == ["unchecked", "near_tie", "unchecked"]
    assert rows["first_divergence"].tolist() == [pd.NA, 4, pd.NA]


def test_values_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        store.add(make_row(1), make_steps(1))
        size = (store.folder / "journal.jsonl").stat().st_size
        for wrong in ({"colour": "red"}, {"turn": "first"}):
            with pytest.raises((ValueError, TypeError)):
                store.add(make_row(2, **wrong), make_steps(2))
        assert (store.folder / "journal.jsonl").stat().st_size == size
        assert store.done() == {key_of(1)}


def test_half_a_line_in_the_journal_is_no_row(tmp_path):
    store = ResultStore.open_run(tmp_path, "s", "plan")
    store.add(make_row(1), make_steps(1))
    store._lock.close()  # as if the process had died: nothing is closed in order
    journal = store.folder / "journal.jsonl"
    line = journal.read_bytes()
    journal.write_bytes(line + line[: len(line) // 2])
    assert check_whole(load_results(store.folder).rows, load_results(store.folder).steps) == {1}
    with ResultStore.open_run(tmp_path, "s", "plan") as again:
        assert again.folder == store.folder
        again.add(make_row(2), make_steps(2))
    assert check_whole(load_results(store.folder).rows, load_results(store.folder).steps) == {1, 2}


def test_a_killed_run_reports_without_a_summary(tmp_path):
    store = ResultStore.open_run(tmp_path, "s", "plan")
    store.add(make_row(1), make_steps(1))
    store._lock.close()
    results = load_results(store.folder)
    assert results.summary["tokens_per_second"].tolist() == pytest.approx([STEPS / 0.1])


def test_a_summary_of_another_version_is_made_anew(tmp_path):
    """Columns that the file lacks would be missing in every table; those in it may mean something else."""
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        row = make_row(1) | {"executor": "tree", "dtype": "float32", "concurrency": 1, "prompt_tokens": 20}
        store.add(row, make_steps(1))
        store.write_provenance({"step_costs": [{"executor": "tree", "dtype": "float32", "curves": {"128": [[1, 1.25], [999, 1.25]]}}]})
        written = summarise(*store.frames(), 0)
        store.write_summary(written.drop(columns="predicted_speedup").assign(step_cost=99.0))
    summary = load_results(store.folder).summary
    assert list(summary.columns) == list(written.columns) and summary["step_cost"].isna().all()
    # The prediction is that of the run's own curves.
    assert summary["predicted_step_cost"].tolist() == pytest.approx([1.25])
    store.write_summary(summary.assign(note="of the file"))
    again = load_results(store.folder).summary
    assert again["note"].tolist() == ["of the file"]
    assert again["acceptance_histogram"].tolist() == summary["acceptance_histogram"].tolist()


def test_a_summary_of_fewer_rows_is_not_taken(tmp_path):
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        store.add(make_row(1, error="crashed"))
        store.write_summary(summarise(*store.frames(), 0))
        assert load_results(store.folder).summary["failures"].tolist() == [1]
        store.add(make_row(1), make_steps(1))
    results = load_results(store.folder)
    assert results.summary["failures"].tolist() == [0]
    assert results.summary["tokens_per_second"].tolist() == pytest.approx([STEPS / 0.1])


@pytest.mark.parametrize("name", ["rows.parquet", "steps.parquet", "config.yaml", "provenance.json", "summary.csv"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, name):
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        store.add(make_row(1), make_steps(1))
    (store.folder / name).write_text("" if name == "summary.csv" else "a: [")
    with pytest.raises(InputError) as caught:
        load_results(store.folder)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="must be the folder of a run"):
        load_results(tmp_path)


FULL_DISK = f"""
import os, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_store import *
with ResultStore.open_run(sys.argv[1], "s", "plan") as store:
    for number in range(40):
        store.add(make_row(number), make_steps(number))
        os.write(1, b"%d\\n" % number)
        # No file may grow beyond this from now on: the kernel refuses as it does on a full disk.
        limit = 30_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
"""


def test_a_full_disk_is_an_oserror_and_keeps_what_was_finished(tmp_path):
    writer = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert writer.returncode == 1
    assert "OSError: [Errno 27] File too large: " in writer.stderr
    acknowledged = {int(line) for line in writer.stdout.split()}
    assert 1 < len(acknowledged) < 40
    [folder] = (path for path in (tmp_path / "s").iterdir() if path.is_dir())
    results = load_results(folder)
    assert acknowledged <= check_whole(results.rows, results.steps)
    assert list(folder.glob("*.tmp")) == []
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        store.add(make_row(99), make_steps(99))
        assert acknowledged | {99} <= {int(key.prompt_id) for key in store.done()}


def test_a_large_run_is_not_slowed_down_by_its_store(tmp_path):
    """Rows cost the same however many there are: no checkpoint of everything at each of them, once that is dear."""
    with ResultStore.open_run(tmp_path, "s", "plan") as store:
        took = []
        for number in range(600):
            begun = time.perf_counter()
            store.add(make_row(number), make_steps(number))
            took.append(time.perf_counter() - begun)
    assert np.median(took[-100:]) < 8 * np.median(took[:100])
    results = load_results(store.folder)
    assert len(check_whole(results.rows, results.steps)) == 600
