from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lookahead_bench.stats import MIN_PROMPTS, acceptance_histogram, speedup_interval, summarise, verdict

pytestmark = pytest.mark.unit


def make_row(cell_id: str, prompt_id: str, tokens: int | None, seconds: float | None, steps: int | None, **values):
    row = {
        "cell_id": cell_id,
        "model": "m",
        "label": cell_id,
        "dataset": "d",
        "prompt_id": prompt_id,
        "turn": 0,
        "strategy": {"base": "vllm", "la": "lookahead"}.get(cell_id, cell_id),
        "parameters": "{}",
        "window": None,
        "ngram": None,
        "branches": None,
        "executor": "stock" if cell_id == "base" else "tree",
        "dtype": "float32",
        "concurrency": 1,
        "temperature": 0.0,
        "max_new_tokens": 64,
        "is_baseline": cell_id == "base",
        "repeat": 0,
        "new_tokens": tokens,
        "decode_steps": steps,
        "drafted_tokens": 0 if cell_id == "base" else 10,
        "accepted_tokens": 0 if tokens is None else tokens - 1 - steps,
        "prefill_seconds": 0.1,
        "decode_seconds": seconds,
        "equivalence": "identical",
        "identical_other_batch": None,
        "error": None,
    }
    return row | values


def summary_of(*rows: dict, steps: pd.DataFrame | None = None) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for name in ("new_tokens", "decode_steps", "drafted_tokens", "accepted_tokens"):
        frame[name] = frame[name].astype("Int64")
    if steps is None:
        steps = pd.DataFrame(columns=["cell_id", "in_flight", "accepted"])
    return summarise(frame, steps, seed=0).set_index("cell_id")


def test_a_summary_computed_by_hand():
    summary = summary_of(
        make_row("base", "a", 11, 1.0, 10, identical_other_batch=True),
        make_row("base", "b", 21, 2.0, 20, identical_other_batch=False),
        make_row("la", "a", 11, 0.4, 5),
        make_row("la", "b", 21, 1.1, 10, equivalence="near_tie"),
    )
    base, lookahead = summary.loc["base"], summary.loc["la"]
    assert base["tokens_per_second"] == pytest.approx(10)
    assert lookahead["tokens_per_second"] == pytest.approx(30 / 1.5)
    assert lookahead["tokens_per_second_mean"] == pytest.approx((10 / 0.4 + 20 / 1.1) / 2)
    assert lookahead["speedup"] == pytest.approx(2.0)
    assert lookahead["speedup_mean"] == pytest.approx((1 / 0.4 + 2 / 1.1) / 2)
    assert lookahead["step_compression"] == pytest.approx(2.0)
    assert lookahead["step_cost"] == pytest.approx((1.5 / 15) / (3.0 / 30))
    assert lookahead["speedup"] == pytest.approx(lookahead["step_compression"] / lookahead["step_cost"])
    assert lookahead["equivalence_rate"] == 0.5
    assert lookahead["near_ties"] == 1
    assert lookahead["noise_floor"] == 0.5
    assert lookahead["drafted"] == 20
    assert lookahead["prompts"] == 2
    assert base["speedup"] == 1
    assert base["verdict"] == ""


def test_failures_are_counted_and_take_no_part():
    failed = make_row("la", "b", None, None, None, error="gone", equivalence="unchecked")
    failed |= {"drafted_tokens": None, "prefill_seconds": None}
    whole = (make_row("base", "a", 11, 1.0, 10), make_row("base", "b", 21, 4.0, 20), make_row("la", "a", 11, 0.5, 5))
    lookahead = summary_of(*whole, failed).loc["la"]
    assert lookahead["failures"] == 1
    assert lookahead["prompts"] == 1
    assert lookahead["speedup"] == pytest.approx(2.0)
    assert lookahead["equivalence_rate"] == 1
    assert lookahead["checked"] == 1
    assert "1 of 2 requests failed" in lookahead["note"]


def test_what_a_failed_row_takes_away_is_missing_everywhere():
    """S, c and the speed-up are of the same rows, so that S / c is the speed-up whatever fails on which side."""
    gone = {"error": "gone", "equivalence": "unchecked", "prefill_seconds": None}
    rows = [make_row("base", str(p), 11 + 4 * p, 1.0 + p, 10 + 4 * p) for p in range(4)]
    rows += [make_row("la", str(p), 11 + 4 * p, 0.3 + 0.5 * p, 4 + p) for p in range(4)]
    rows[0] |= gone | dict.fromkeys(("new_tokens", "decode_steps", "decode_seconds"))
    rows[-1] |= gone | dict.fromkeys(("new_tokens", "decode_steps", "decode_seconds"))
    lookahead = summary_of(*rows).loc["la"]
    assert lookahead["step_compression"] == pytest.approx((14 + 18) / (5 + 6))
    assert lookahead["step_cost"] == pytest.approx((0.8 + 1.3) / (5 + 6) / ((2 + 3) / (14 + 18)))
    assert lookahead["speedup"] == pytest.approx((5 / (14 + 18)) / ((0.8 + 1.3) / (14 + 18)))
    assert lookahead["speedup"] == pytest.approx(lookahead["step_compression"] / lookahead["step_cost"])
    # With nothing to compare with, all that was decoded counts.
    assert summary_of(*rows[4:]).loc["la", "step_compression"] == pytest.approx((10 + 14 + 18) / (4 + 5 + 6))


def test_outputs_of_one_token_have_no_rate():
    summary = summary_of(make_row("base", "a", 1, 0.0, 0), make_row("la", "a", 1, 0.0, 0))
    for cell in ("base", "la"):
        assert summary.loc[cell, ["tokens_per_second", "speedup", "step_compression", "step_cost"]].isna().all()
    assert summary.loc["la", "verdict"] == "can't tell"
    assert summary.loc["la", "note"] == ""


def test_a_cell_without_a_single_good_row():
    failed = make_row("la", "a", None, None, None, error="gone", equivalence="unchecked")
    lookahead = summary_of(make_row("base", "a", 11, 1.0, 10), failed).loc["la"]
    assert lookahead["failures"] == 1
    assert np.isnan(lookahead["equivalence_rate"])
    assert np.isnan(lookahead["speedup"])


def test_a_baseline_with_other_settings_is_not_compared_with():
    base = make_row("base", "a", 11, 1.0, 10, dtype="bfloat16")
    assert np.isnan(summary_of(base, make_row("la", "a", 11, 0.5, 5)).loc["la", "speedup"])


def test_a_method_that_drafted_nothing_is_marked():
    rows = [make_row(cell, "a", 11, 1.0, 10, drafted_tokens=0) for cell in ("base", "la", "autoregressive")]
    summary = summary_of(*rows)
    assert summary.loc["la", "note"] == "drafted nothing"
    assert summary.loc["base", "note"] == summary.loc["autoregressive", "note"] == ""


def test_an_empty_store_has_an_empty_summary():
    frame = pd.DataFrame([make_row("base", "a", 1, 1.0, 1)]).iloc[:0]
    assert summarise(frame, pd.DataFrame(columns=["cell_id", "in_flight"]), 0).empty


def test_turns_and_repeats_of_a_prompt_are_one_cluster():
    prompts = [make_row("base", str(p), 11, 1.0, 10) for p in range(6)]
    prompts += [make_row("la", str(p), 11, 0.4 + 0.05 * p, 5) for p in range(6)]
    doubled = [row | {"turn": turn} for row in prompts for turn in (0, 1)]
    once, twice = summary_of(*prompts).loc["la"], summary_of(*doubled).loc["la"]
    for column in ("speedup", "speedup_low", "speedup_high"):
        assert twice[column] == pytest.approx(once[column])


def test_order_of_rows_moves_nothing():
    random = np.random.default_rng(0)
    rows = [make_row(c, str(p), 40, random.uniform(1, 2), 30) for c in ("base", "la") for p in range(8)]
    columns = ["speedup", "speedup_low", "speedup_high", "tokens_per_second", "step_cost"]
    straight, turned = summary_of(*rows).loc["la", columns], summary_of(*rows[::-1]).loc["la", columns]
    assert straight.astype(float).to_numpy() == pytest.approx(turned.astype(float).to_numpy())


def test_nodes_per_step_and_histogram():
    steps = pd.DataFrame({"cell_id": "la", "dataset": "d", "in_flight": [1, 9, 8], "accepted": [1, 3, 1]})
    summary = summary_of(make_row("base", "a", 6, 1.0, 5), make_row("la", "a", 6, 1.0, 3), steps=steps)
    assert summary.loc["la", "nodes_per_step"] == 6
    assert np.isnan(summary.loc["base", "nodes_per_step"])
    histogram = acceptance_histogram(steps)
    assert list(zip(histogram["accepted"], histogram["count"])) == [(1, 2), (3, 1)]


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_a_summary_does_not_depend_on_the_rows(order):
    methods = [("vllm", None), ("vllm_control", None), ("vllm_ngram", None), ("autoregressive", None),
               ("lookahead", 2), ("lookahead", 10)]  # fmt: skip
    rows = [
        make_row(f"{dataset}{name}{ngram}", "p", 11, 1.0, 10, dataset=dataset, strategy=name, ngram=ngram,
                 is_baseline=name == "vllm", drafted_tokens=1)
        for dataset in ("d", "e")
        for name, ngram in methods
    ]  # fmt: skip
    found = summary_of(*rows[::order]).reset_index()["cell_id"]
    assert found.tolist() == [f"{dataset}{name}{ngram}" for dataset in ("d", "e") for name, ngram in methods]


def test_verdicts():
    assert verdict(1.01, 1.2, MIN_PROMPTS) == "faster"
    assert verdict(0.8, 0.99, MIN_PROMPTS) == "slower"
    assert verdict(0.9, 1.1, 100) == "can't tell"
    assert verdict(1.5, 1.6, MIN_PROMPTS - 1) == "can't tell"
    assert verdict(np.nan, np.nan, 1) == "can't tell"
    # Two processes of plain decoding differ: that has to be exceeded as well.
    assert verdict(1.01, 1.2, MIN_PROMPTS, (1.0, 1.05)) == "can't tell"
    assert verdict(1.06, 1.2, MIN_PROMPTS, (1.0, 1.05)) == "faster"
    assert verdict(0.8, 0.98, MIN_PROMPTS, (0.97, 1.0)) == "can't tell"
    # It is chance which of the two was the slower one: what happened downwards could have happened upwards.
    assert verdict(1.05, 1.2, MIN_PROMPTS, (0.9, 0.95)) == "can't tell"
    assert verdict(1.12, 1.2, MIN_PROMPTS, (0.9, 0.95)) == "faster"
    assert verdict(0.8, 0.95, MIN_PROMPTS, (1.05, 1.1)) == "can't tell"
    assert verdict(0.8, 0.9, MIN_PROMPTS, (1.05, 1.1)) == "slower"
    assert verdict(0.8, 0.98, MIN_PROMPTS, (np.nan, np.nan)) == "slower"


def test_equal_ratios_have_an_interval_without_width():
    tokens = np.array([10.0, 20, 30, 40, 50, 60])
    speedup, low, high = speedup_interval(tokens, tokens / 2, tokens, tokens, seed=0)
    assert (speedup, low, high) == pytest.approx((2, 2, 2))


def test_one_prompt_has_no_interval():
    one = np.array([10.0])
    speedup, low, high = speedup_interval(one, one / 2, one, one, seed=0)
    assert speedup == 2
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("prompts", [MIN_PROMPTS, 8, 20])
def test_the_interval_holds_the_truth_as_often_as_it_says(prompts: int):
    random = np.random.default_rng(prompts)
    spread, true_ratio, trials, held, alarms = 0.25, 1.4, 150, 0, 0
    # Seconds are exact multiples of tokens, so the ratio of expected sums is true_ratio / E[exp(N(0, s))].
    truth = true_ratio / np.exp(spread**2 / 2)
    for trial in range(trials):
        tokens = random.integers(40, 128, prompts).astype(float)
        base = tokens * 0.018 * random.lognormal(0, 0.03, prompts)
        varied = tokens * 0.018 / true_ratio * random.lognormal(0, spread, prompts)
        _, low, high = speedup_interval(tokens, varied, tokens, base, trial)
        held += low <= truth <= high
        _, low, high = speedup_interval(
            tokens, tokens * 0.018 * random.lognormal(0, 0.03, prompts), tokens, base, trial
        )
        alarms += verdict(low, high, prompts) != "can't tell"
    # 95 % nominal; simulated with 300 trials: 92 % with 5 prompts, 95 % with 20; plain against plain 7 % and less.
    assert held / trials >= 0.87
    assert alarms / trials <= 0.13
