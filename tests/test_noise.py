"""Plain decoding against itself, and the test that judges a method by it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from lookahead_bench.noise import ABOVE, MIN_PROMPTS, UNDECIDED, WITHIN, Passes, judge, noise_columns, p_value

pytestmark = pytest.mark.unit


def test_with_one_pass_it_is_mcnemars_exact_test():
    both, method_only, plain_only, neither = 3, 6, 1, 10
    pairs = (
        [Passes(1, (1,))] * both + [Passes(1, (None,))] * method_only + [Passes(None, (2,))] * plain_only
        + [Passes(None, (None,))] * neither
    )  # fmt: skip
    expected = binomtest(method_only, method_only + plain_only, 0.5, alternative="greater").pvalue
    assert p_value(pairs) == pytest.approx(expected)


def test_a_method_that_is_one_more_pass_is_rarely_said_to_be_above():
    random = np.random.default_rng(0)
    alarms = trials = 0
    for _ in range(2000):
        # Prompts differ much in how easily they part; the passes of one prompt are alike in that.
        chances = random.beta(0.5, 0.7, size=16)
        pairs = []
        for chance in chances:
            parts = [5 if random.random() < chance else None for _ in range(3)]
            pairs.append(Passes(parts[0], tuple(parts[1:])))
        trials += 1
        alarms += judge(pairs, p_value(pairs)) == ABOVE
    # Exact and discrete, so at most 5 %; four standard errors of chance on top.
    assert alarms / trials <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / trials)


def test_a_method_that_differs_where_plain_decoding_does_not_is_above():
    pairs = [Passes(4, (None, None))] * 5 + [Passes(None, (None, None))] * 11
    assert judge(pairs, p_value(pairs)) == ABOVE


@pytest.mark.parametrize(
    "pairs, verdict",
    [
        ([], ""),
        ([Passes(None, (None,))] * 2, WITHIN),
        ([Passes(3, (None, None))] * (MIN_PROMPTS - 1), UNDECIDED),
        ([Passes(3, (3, None))] * MIN_PROMPTS + [Passes(None, (9, 9))] * MIN_PROMPTS, WITHIN),
    ],
)
def test_verdicts(pairs, verdict):
    assert judge(pairs, p_value(pairs)) == verdict


def rows(is_baseline: bool, divergences: list[int | None], passes: list[dict[str, int | None]] | None) -> pd.DataFrame:
    kinds = ["identical" if at is None else "near_tie" for at in divergences]
    return pd.DataFrame({
        "is_baseline": is_baseline, "prompt_id": [str(n) for n in range(len(kinds))], "turn": 0, "repeat": 0, "error": None,
        "equivalence": kinds, "first_divergence": pd.array(divergences, dtype="Int64"),
        "other_batches": [json.dumps(one) for one in passes] if passes else None,
    })  # fmt: skip


def test_the_columns_are_those_of_the_rows():
    baseline = rows(True, [None] * 4, [{"4": 7, "8": None}, {"4": None, "8": None}, {"4": 9, "8": 11}, {"4": None, "8": None}])
    found = noise_columns(rows(False, [10, None, None, 30], None), baseline)
    assert (found["noise_floor"], found["noise_passes"]) == (3 / 8, 8)
    assert (found["divergence_rate"], found["near_tie_rate"], found["mismatch_rate"]) == (0.5, 0.5, 0)
    assert [found[f"divergence_{name}"] for name in ("q1", "median", "q3")] == [15, 20, 25]
    assert [found[f"noise_divergence_{name}"] for name in ("q1", "median", "q3")] == [8, 9, 10]
    assert found["noise_verdict"] == UNDECIDED
    assert noise_columns(baseline, baseline)["noise_verdict"] == ""


def test_without_a_baseline_or_with_an_old_one_there_is_no_verdict():
    own = rows(False, [None] * 3, None)
    assert noise_columns(own, None)["noise_verdict"] == ""
    old = rows(True, [None] * 3, None).assign(identical_other_batch=[True, True, False])
    found = noise_columns(own, old)
    assert (found["noise_floor"], found["noise_verdict"]) == (pytest.approx(1 / 3), "")
