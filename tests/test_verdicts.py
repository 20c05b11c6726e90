"""Verdicts where plain decoding's margins decide, on engines that are tables of answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lookahead_bench.plan import Plan
from lookahead_bench.records import Cell, EngineSpec, Generation, Prompt, Request, StrategySpec
from lookahead_bench.rows import row_of
from lookahead_bench.schedule import baseline_of
from lookahead_bench.store import ResultStore
from lookahead_bench.tables import Key
from lookahead_bench.verdicts import Verdicts

pytestmark = pytest.mark.unit

PROMPTS = {"own": [Prompt("a", "own", token_ids=(1,)), Prompt("b", "own", token_ids=(2,))]}
TIMED = (5, 6, 7, 8)
"""What the baseline gave, with both prompts at once; the method gave another last token."""
OTHER_WAY = ((5, 9, 9, 9), 3.0)
"""A pass that leaves the timed output at its second token."""


def cells(concurrency: int) -> list[Cell]:
    return [
        Cell(name, "own", StrategySpec(name), EngineSpec("m", name, executor, dtype="bfloat16"), 4,
             concurrency=concurrency, is_baseline=name == "vllm")
        for name, executor in (("vllm", "stock"), ("lookahead", "tree"))
    ]  # fmt: skip


def judged(folder, concurrency: int, answers: dict[int, tuple[tuple[int, ...], float]]):
    """The method's row on prompt "a", and how many requests each margin pass had.

    Args:
        answers: tokens of a margin pass and the gap to the method's last token there, by how many requests it has at once.
    """
    plan = Plan("test", tuple(cells(concurrency)), repeats=1, seed=0, warmup_tokens=0, plan_id="p")
    passes = []

    def generate(_, requests, at_once):
        passes.append(min(len(requests), at_once))
        tokens, margin = answers[passes[-1]]
        gaps = (*({token: 0.0, 99: 9.0} for token in tokens[:3]), {tokens[3]: 0.0, 4: margin})
        return [Generation(r.request_id, tokens, "", "length", 1.0, 1.0, (), gaps) for r in requests]

    def baseline_key(cell, prompt_id, turn):
        return Key(baseline_of(cell, plan.cells).cell_id, prompt_id, turn, 0)

    asking = SimpleNamespace(
        baseline_key=baseline_key,
        request=lambda cell, prompt, *_, margins: Request(prompt.prompt_id, prompt.token_ids, 4, logit_gaps=margins),
    )
    with ResultStore.open_run(folder, "test", "p") as store:
        for cell in plan.cells:
            for prompt in PROMPTS["own"]:
                tokens = TIMED if cell.is_baseline else (*TIMED[:3], 4)
                row, steps = row_of(
                    cell, prompt, model="m", turn=0, repeat=0, prompt_tokens=1, started_at="2026-01-01T00:00:00+00:00",
                    load_average=0.0, loaded=False, generation=Generation("x", tokens, "", "length", 1.0, 1.0, ()),
                )  # fmt: skip
                store.add(row, steps)
        verdicts = Verdicts(plan, PROMPTS, store, asking, generate, SimpleNamespace(phase=lambda _: None))
        verdicts.settle_divergent()
        return store.row(Key("lookahead", "a", 0, 0)), passes


def test_margins_are_taken_beside_the_requests_of_the_timed_pass(tmp_path):
    row, passes = judged(tmp_path, 2, {2: (TIMED, 0.2), 1: OTHER_WAY})
    assert (row["equivalence"], row["divergence_margin"]) == ("near_tie", pytest.approx(0.2))
    # One pass has the margins of both prompts.
    assert passes == [2]


def test_a_margin_beside_them_is_not_outdone_by_a_smaller_one_alone(tmp_path):
    row, passes = judged(tmp_path, 2, {2: (TIMED, 3.0), 1: (TIMED, 0.0)})
    assert (row["equivalence"], row["divergence_margin"]) == ("mismatch", 3.0)
    assert passes == [2]


def test_the_pass_alone_decides_where_the_other_took_another_way(tmp_path):
    row, passes = judged(tmp_path, 2, {2: OTHER_WAY, 1: (TIMED, 0.2)})
    assert row["equivalence"] == "near_tie"
    assert passes == [2, 1, 1]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_without_a_pass_that_gets_there_nothing_is_proven(tmp_path, concurrency):
    row, passes = judged(tmp_path, concurrency, {2: OTHER_WAY, 1: OTHER_WAY})
    assert (row["equivalence"], row["divergence_margin"]) == ("mismatch", None)
    assert "plain decoding differs from itself at token 1" in row["equivalence_note"]
    assert passes == ([2, 1, 1] if concurrency == 2 else [1, 1])
