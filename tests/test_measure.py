"""The measuring loop with real engines: one run that is hit by a crash and a full disk, interrupted, and completed."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest

from lookahead_bench.command import is_no_room
from lookahead_bench.data import encode_turn
from lookahead_bench.errors import EngineError
from lookahead_bench.fleet import Fleet
from lookahead_bench.measure import measure
from lookahead_bench.plan import Plan
from lookahead_bench.progress import LineProgress
from lookahead_bench.records import Cell, EngineSpec, Prompt, StrategySpec
from lookahead_bench.stats import summarise
from lookahead_bench.store import ResultStore, load_results
from lookahead_bench.tables import Key, Tables

pytestmark = pytest.mark.model

MAX_NEW_TOKENS = 12
FALSIFIED = Key("id-lookahead", "c", 0, 0)
PROMPTS = {
    "talk": [
        Prompt("a", "talk", ("Name three colours.", "Now name three animals.")),
        # The second turn is longer than the engine's longest sequence.
        Prompt("b", "talk", ("Count to five.", "word " * 400)),
        Prompt("c", "talk", ("Say: one two three one two three one two",)),
    ]
}


class Watcher:
    """A tracker that keeps the rows, and does something once when it has seen enough of them."""

    def __init__(self, after: int = -1, then=lambda: None) -> None:
        self.rows: list[dict] = []
        self._after, self._then = after, then

    def row(self, row):
        self.rows.append(dict(row))
        if len(self.rows) == self._after:
            self._then()


def interrupt():
    raise KeyboardInterrupt


def engines() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "lookahead_bench.engine.session" in child.cmdline()]


def kill_plugin():
    assert len(engines()) == 2
    # Engines start in the order of the cells: the second one is the plug-in's.
    max(engines(), key=psutil.Process.create_time).kill()


@pytest.fixture(scope="module")
def plan(model_source) -> Plan:
    def cell(strategy: StrategySpec, role: str, executor: str, **options) -> Cell:
        engine = EngineSpec(
            model_source.path,
            role,
            executor,
            max_model_len=256,
            max_num_seqs=4,
            kv_cache_bytes=1 << 28,
            enforce_eager=True,
            **options,
        )
        return Cell(f"id-{strategy.name}", "talk", strategy, engine, MAX_NEW_TOKENS, is_baseline=role == "vllm")

    cells = (
        cell(StrategySpec("vllm"), "vllm", "stock"),
        cell(StrategySpec("lookahead", {"window": 2, "ngram": 3, "branches": 2}), "plugin", "tree", max_drafts=16),
    )
    return Plan("test", cells, repeats=1, seed=0, warmup_tokens=2, plan_id="measured")


@contextmanager
def full_disk() -> Iterator[None]:
    """Whatever the store writes finds no room."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lookahead_bench.files._write", refuse)
        yield


@pytest.fixture(scope="module")
def story(plan, tokenizer, model_source, tmp_path_factory):
    """Five commands on one plan: an engine is killed; the row that it lost is done and finds the disk full; it is done again,
    then Ctrl-C; then an output has been falsified; then all is done."""
    results = tmp_path_factory.mktemp("results")
    told = []
    for watcher, disk in (
        (Watcher(1, kill_plugin), nullcontext), (Watcher(), full_disk), (Watcher(1, interrupt), nullcontext),
        (Watcher(), nullcontext), (Watcher(), nullcontext),
    ):  # fmt: skip
        lines, ended_by = [], None
        store = ResultStore.open_run(results, plan.sweep, plan.plan_id)
        if len(told) == 3:
            tokens = store.row(FALSIFIED)["token_ids"]
            wrong = [*tokens[:3], tokens[3] + 1, *tokens[4:]]
            store.amend({FALSIFIED: {"token_ids": wrong, "equivalence": "unchecked"}})
        progress = LineProgress(SimpleNamespace(print=lambda text, **_: lines.append(text)))
        logs = store.folder / "logs"
        try:
            with disk(), store:
                measure(plan, PROMPTS, tokenizer, store, watcher, progress, logs, model_source)
        except (KeyboardInterrupt, OSError) as error:
            ended_by = error
        rows, steps = Tables.read(store.folder)[0].frames()
        told.append(SimpleNamespace(
            watcher=watcher, ended_by=ended_by, lines=lines, rows=rows, steps=steps, folder=store.folder,
            logs=logs, engines_left=engines(),
        ))  # fmt: skip
    return told


def keys(rows) -> list[Key]:
    return [Key(row["cell_id"], row["prompt_id"], row["turn"], row["repeat"]) for row in rows]


def test_a_crash_fails_its_row_and_the_rest_goes_on(story):
    run = story[0]
    broken = run.rows[run.rows["error"].fillna("").str.contains("died")]
    assert broken["strategy"].tolist() == ["lookahead"]
    assert broken["equivalence"].tolist() == ["unchecked"]
    assert broken[["new_tokens", "decode_seconds", "decode_steps"]].isna().all(axis=None)
    assert run.rows.loc[run.rows["strategy"] == "lookahead", "error"].isna().sum() == 3
    text = (run.logs / "failures.txt").read_text()
    assert "EngineError" in text
    assert "lookahead W2 N3 G2" in text
    assert sum("starting engine plugin" in line for line in run.lines) == 2


def test_a_full_disk_ends_the_run_and_takes_nothing_of_what_is_finished(story):
    before, full = story[0], story[1]
    assert is_no_room(full.ended_by)
    assert any("starting engine plugin" in line for line in full.lines)
    assert full.watcher.rows == []
    pd.testing.assert_frame_equal(full.rows, before.rows)
    pd.testing.assert_frame_equal(full.steps, before.steps)


def test_only_what_failed_is_done_again_and_ctrl_c_keeps_it(story):
    first, third = story[0], story[2]
    lost = first.rows.loc[first.rows["error"].fillna("").str.contains("died"), "prompt_id"].tolist()
    assert isinstance(third.ended_by, KeyboardInterrupt)
    assert [row["prompt_id"] for row in third.watcher.rows] == lost
    assert [line for line in third.lines if "starting" in line] == ["starting engine plugin, 1 of 1"]


def test_no_engine_outlives_its_run(story):
    assert [run.engines_left for run in story] == [[], [], [], [], []]


def test_a_finished_run_repeats_nothing(story):
    last = story[-1]
    assert not any("starting engine" in line for line in last.lines)
    done = Counter(
        key for run in story for key, row in zip(keys(run.watcher.rows), run.watcher.rows) if not row["error"]
    )
    assert set(done.values()) == {1}
    assert len(done) == 2 * 4  # two cells; a has two turns, b's second turn fails, c has one


def test_a_turn_that_leaves_no_room_fails_for_all_cells_by_name(story):
    rows = story[-1].rows
    failed = rows[rows["error"].notna()]
    assert sorted(failed["cell_id"]) == ["id-lookahead", "id-vllm"]
    assert set(failed["prompt_id"]) == {"b"}
    assert set(failed["turn"]) == {1}
    assert failed["error"].str.contains("engine.max_model_len=256").all()


def test_a_wrong_output_is_a_mismatch_with_the_baselines_margin(story):
    rows = story[3].rows
    [row] = rows[rows["equivalence"] == "mismatch"].to_dict("records")
    assert (row["cell_id"], row["prompt_id"], row["first_divergence"]) == ("id-lookahead", "c", 3)
    assert row["divergence_margin"] > 1e-4
    assert [line for line in story[3].lines if "starting" in line] == ["starting engine vllm"]


def test_every_output_is_that_of_plain_decoding(story):
    rows = story[2].rows
    good = rows[rows["error"].isna()]
    assert set(good["equivalence"]) == {"identical"}
    tokens = good.pivot(index=["prompt_id", "turn"], columns="strategy", values="token_ids")
    assert (tokens["vllm"].map(tuple) == tokens["lookahead"].map(tuple)).all()


def test_the_second_turn_has_the_baselines_first_answer_in_it(story, tokenizer):
    rows = story[-1].rows.set_index(["cell_id", "prompt_id", "turn"])
    prompt = PROMPTS["talk"][0]
    expected = encode_turn(prompt, 1, [rows.loc[("id-vllm", "a", 0), "text"]], tokenizer)
    assert set(rows.xs(("a", 1), level=("prompt_id", "turn"))["prompt_tokens"]) == {len(expected)}


def test_rows_and_steps_agree(story):
    run = story[2]
    good = run.rows[run.rows["error"].isna()]
    steps = run.steps.groupby(["cell_id", "prompt_id", "turn"])
    for row in good.to_dict("records"):
        own = steps.get_group((row["cell_id"], row["prompt_id"], row["turn"]))
        assert len(own) == row["decode_steps"]
        assert own["accepted"].sum() == row["new_tokens"] - 1
        assert (own["in_flight"] - 1).sum() == row["drafted_tokens"]
        assert 0 < own["seconds"].sum() <= row["decode_seconds"] * 1.001
        assert row["load_average"] >= 0
    plain = good[good["strategy"] == "vllm"]
    assert (plain["drafted_tokens"] == 0).all()
    assert (plain["decode_steps"] == plain["new_tokens"] - 1).all()
    assert good.loc[good["strategy"] == "lookahead", "drafted_tokens"].sum() > 0


def test_the_noise_floor_is_measured_on_the_baseline(story):
    run = story[-1]
    first_turns = run.rows[(run.rows["strategy"] == "vllm") & (run.rows["turn"] == 0)]
    assert first_turns["identical_other_batch"].tolist() == [True, True, True]
    summary = summarise(run.rows, run.steps, seed=0).set_index("strategy")
    assert summary["noise_floor"].tolist() == [0, 0]
    assert summary["failures"].tolist() == [1, 1]
    assert summary["mismatches"].tolist() == [0, 1]
    provenance = load_results(run.folder).provenance
    assert "4 at once" in provenance["noise_floor"]["talk"]
    assert provenance["engines"]["vllm"]["versions"]["vllm"]


def test_an_engine_that_cannot_start_fails_its_cells_at_once(plan, tmp_path):
    lines = []
    progress = LineProgress(SimpleNamespace(print=lambda text, **_: lines.append(text)))
    cell = replace(plan.cells[0], engine=replace(plan.cells[0].engine, model=str(tmp_path / "none")))
    with Fleet(tmp_path, progress, lambda _: []) as fleet:
        fleet.start([cell.engine])
        for _ in range(2):
            with pytest.raises(EngineError, match=str(tmp_path / "engine-vllm.log")):
                fleet.generate(cell, [], 1)
    assert len(lines) == 2
    assert "starting engine vllm" in lines[0]
    assert "engine vllm failed" in lines[1]
