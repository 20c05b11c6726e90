"""The regression gate: what it lets pass, what it does not, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from lookahead_bench.regress.__main__ import main
from lookahead_bench.regress.compare import compare
from lookahead_bench.regress.plots import _lines
from lookahead_bench.store import load_results
from tests.example_results import BASELINES, store_run

pytestmark = pytest.mark.unit

METHODS = (*BASELINES, ("lookahead", (5, 3, 5)))


def stored(folder: Path, change=lambda row: row, provenance=None, methods=METHODS, **settings) -> Path:
    results = store_run(folder, methods=methods, change=change, **settings)
    path = results.folder / "provenance.json"
    record = {"started_at": "2026-01-02", "cpu": {"model": "one", "usable_cores": 2}, **json.loads(path.read_text())}
    path.write_text(json.dumps(record | (provenance or {})))
    return results.folder


def only(strategy: str, **changes):
    """A change of one method's rows; a value may be a function of the row."""

    def change(row: dict) -> dict:
        if row["strategy"] != strategy:
            return row
        return row | {name: new(row) if callable(new) else new for name, new in changes.items()}

    return change


@pytest.fixture(scope="module")
def baseline(tmp_path_factory) -> Path:
    return stored(tmp_path_factory.mktemp("baseline"))


def judged(baseline: Path, current: Path, capsys, *options: str) -> tuple[int, str]:
    status = main(["--baseline", str(baseline), "--current", str(current), *options])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


def test_a_run_against_itself_passes_and_leaves_summary_and_figures(baseline, tmp_path, capsys):
    status, said = judged(baseline, baseline, capsys, "--out", str(tmp_path / "out"))
    assert status == 0 and "## No regression." in said
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"regress.md", "before_after.png", "trend.png", "history.csv"}
    assert (tmp_path / "out" / "regress.md").read_text() in said
    assert len(pd.read_csv(tmp_path / "out" / "history.csv")) == 2 * len(METHODS)


@pytest.mark.parametrize(
    "change, said",
    [
        (only("lookahead", token_ids=lambda row: [*row["token_ids"][:-1], 7]), "12 outputs of 12 with other tokens"),
        (only("lookahead", decode_steps=lambda row: row["decode_steps"] + 1), "steps for the same tokens"),
        (
            # One prompt gains what another loses.
            only("lookahead", decode_steps=lambda row: row["decode_steps"] + {100: 1, 101: -1}.get(row["prompt_tokens"], 0)),
            "on 1 output of 12",
        ),
        (only("lookahead", drafted_tokens=lambda row: row["drafted_tokens"] + 3), "drafted tokens for the same steps"),
        (only("lookahead", equivalence="mismatch"), "12 outputs further from plain decoding's"),
        (only("lookahead", equivalence="near_tie"), "12 outputs further from plain decoding's"),
        (only("lookahead", error="engine died", token_ids=None, new_tokens=None, decode_steps=None), "12 more requests failed"),
        (only("vllm", token_ids=lambda row: [*row["token_ids"][:-1], 7]), "12 outputs of 12 with other tokens"),
    ],
)  # fmt: skip
def test_what_is_exact_may_not_become_worse(baseline, tmp_path, capsys, change, said):
    status, shown = judged(baseline, stored(tmp_path, change), capsys, "--exact-only")
    assert status == 1
    assert "## Regression: " in shown and said in shown


def test_fewer_steps_for_the_same_tokens_are_better_and_pass(baseline, tmp_path, capsys):
    change = only("lookahead", decode_steps=lambda row: row["decode_steps"] - 1)
    status, shown = judged(baseline, stored(tmp_path, change), capsys, "--exact-only")
    assert status == 0 and "**Better**" in shown


def test_a_cell_or_an_output_that_is_no_longer_measured_is_a_regression(baseline, tmp_path, capsys):
    status, shown = judged(baseline, stored(tmp_path / "a", methods=METHODS[:-1]), capsys)
    assert status == 1 and "humaneval, lookahead W5 N3 G5: measured before, but not now" in shown
    status, shown = judged(baseline, stored(tmp_path / "b", prompts=11), capsys)
    assert status == 1 and "1 output measured before and not now" in shown


@pytest.mark.parametrize("factor, status, said", [(1.5, 1, "slower"), (1.005, 0, "No regression"), (0.6, 0, "faster")])
def test_speed_is_judged_by_the_interval_of_the_ratio(baseline, tmp_path, capsys, factor, status, said):
    def noisy(row: dict) -> dict:
        # Prompts differ a little in how much slower they became; plain decoding is as it was.
        own = factor * (1 + 0.01 * (row["prompt_tokens"] % 3 - 1)) if row["strategy"] == "lookahead" else 1.0
        return row | {"decode_seconds": row["decode_seconds"] * own}

    found, shown = judged(baseline, stored(tmp_path, noisy), capsys)
    assert found == status and said in shown
    assert judged(baseline, stored(tmp_path / "again", noisy), capsys, "--exact-only")[0] == 0


def test_a_machine_that_is_slower_in_everything_is_no_regression(baseline, tmp_path, capsys):
    slower = stored(tmp_path, lambda row: row | {"decode_seconds": 2 * row["decode_seconds"]})
    assert judged(baseline, slower, capsys)[0] == 0


def test_another_machine_is_named_and_prompts_that_plain_decoding_continues_otherwise_are_left_out(baseline, tmp_path, capsys):
    def moved(row: dict) -> dict:
        return row | {"token_ids": [*row["token_ids"][:-1], 7]} if row["prompt_tokens"] == 100 else row

    there = stored(tmp_path, moved, {"cpu": {"model": "two", "usable_cores": 8}})
    status, shown = judged(baseline, there, capsys)
    assert status == 0
    assert "The baseline is from another machine (one; now two): only ratios within a run are compared" in shown
    assert "humaneval: plain decoding itself gives other tokens on 1 output; they are left out." in shown


def test_the_history_grows_by_a_run_once_and_is_drawn(baseline, tmp_path, capsys):
    history = tmp_path / "history.csv"
    later = stored(tmp_path / "later", provenance={"started_at": "2026-02-01"}, sweep="other")
    for _ in range(2):
        judged(baseline, later, capsys, "--history", str(history), "--out", str(tmp_path / "out"))
    known = pd.read_csv(history)
    assert known.groupby("run").size().tolist() == [2 * len(METHODS)] * 2
    # A run that was resumed meanwhile is told as it is now.
    (later / "rows.parquet").rename(tmp_path / "kept")
    rows = pd.read_parquet(tmp_path / "kept")
    rows.loc[rows["strategy"] == "lookahead", "decode_steps"] -= 1
    rows.to_parquet(later / "rows.parquet")
    (later / "summary.csv").unlink()
    judged(baseline, later, capsys, "--history", str(history), "--out", str(tmp_path / "out"))
    again = pd.read_csv(history)
    assert len(again) == len(known) and again["step_compression"].sum() > known["step_compression"].sum()
    assert (tmp_path / "out" / "trend.png").stat().st_size > 10_000


def loaded(row: dict) -> dict:
    """Half of the prompts alone, the others four at once; with four, plain decoding is half as fast and goes on otherwise."""
    if row["prompt_tokens"] % 2:
        return row
    seconds = {"vllm": 2.0, "vllm_control": 2.0}.get(row["strategy"], 1.0) * row["decode_seconds"]
    return row | {"cell_id": row["cell_id"] + "-4", "concurrency": 4, "decode_seconds": seconds}


def test_each_number_of_requests_at_once_has_a_baseline_of_its_own(tmp_path, capsys):
    def later(row: dict) -> dict:
        row = loaded(row)
        if row["concurrency"] == 4 and row["strategy"] == "lookahead":
            return row | {"decode_seconds": 1.5 * row["decode_seconds"]}
        if row["concurrency"] == 4 and row["prompt_tokens"] == 100:
            return row | {"token_ids": [*row["token_ids"][:-1], 7]}
        return row

    before, after = stored(tmp_path / "a", loaded), stored(tmp_path / "b", later, {"cpu": {"model": "two", "usable_cores": 8}})
    comparison = compare(load_results(before), load_results(after))
    found = {(cell.dataset, cell.label): cell for cell in comparison.cells}
    # Against the other number's baseline the speed-up would have changed by another factor.
    assert found["humaneval", "lookahead W5 N3 G5, 4 at once"].change == pytest.approx(1 / 1.5, rel=1e-6)
    assert found["humaneval", "lookahead W5 N3 G5, 4 at once"].speed == "slower"
    assert found["humaneval", "lookahead W5 N3 G5, 1 at once"].change == pytest.approx(1)
    # What plain decoding does with four at once concerns only those.
    assert found["humaneval", "autoregressive, 1 at once"].outputs == 6
    assert found["humaneval", "autoregressive, 4 at once"].outputs == 5
    assert any(note.startswith("humaneval, 4 at once: plain decoding itself") for note in comparison.notes)
    assert not any(note.startswith(("humaneval: plain", "humaneval, 1 at once: plain")) for note in comparison.notes)


def test_no_trend_is_promised_where_none_is_drawn(tmp_path, capsys):
    plain = stored(tmp_path, methods=BASELINES[:1])
    out = tmp_path / "out"
    out.mkdir()
    (out / "trend.png").write_text("of an earlier comparison")
    status, shown = judged(plain, plain, capsys, "--out", str(out))
    assert status == 0 and "trend.png" not in shown and not (out / "trend.png").exists()
    for line in shown.splitlines():
        assert not line.startswith(str(out)) or Path(line).is_file()


def test_other_settings_are_no_line_of_the_history(baseline, tmp_path, capsys):
    """The same label with other parameters, or other tokens, is other work."""
    history = tmp_path / "history.csv"
    other = stored(tmp_path, lambda row: row | {"max_new_tokens": 99}, {"started_at": "2026-02-01"}, sweep="other")
    for run in (baseline, other):
        judged(run, run, capsys, "--history", str(history), "--out", str(tmp_path / "out"))
    known = pd.read_csv(history)
    labels = _lines(known[known["label"] == "lookahead W5 N3 G5"])
    assert labels == ["lookahead W5 N3 G5"] * 2 + ["lookahead W5 N3 G5 (other settings, 2)"] * 2
    # A history of an earlier version goes on.
    known.drop(columns="work").to_csv(history, index=False)
    assert judged(other, other, capsys, "--history", str(history), "--out", str(tmp_path / "out"))[0] == 0
    assert len(pd.read_csv(history)) == len(known)


def test_bad_input_is_one_line_and_status_2(baseline, tmp_path, capsys):
    other = stored(tmp_path / "x", lambda row: row | {"model": "another"})
    damaged = tmp_path / "history.csv"
    damaged.write_text("a,b\n1,2\n")
    for arguments, said in [
        (["--baseline", str(tmp_path / "none"), "--current", str(baseline)], "must be a folder with results"),
        (["--baseline", str(baseline), "--current", str(other)], "must have a cell in common"),
        (["--baseline", str(baseline), "--current", str(baseline), "--history", str(damaged)], "must have the column run"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and said in error
