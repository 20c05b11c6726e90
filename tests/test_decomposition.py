"""What stands behind a speed-up: acceptance by depth, the parts of a step's time, and what steps should cost."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lookahead_bench.decomposition import acceptance_by_depth, decomposition_columns, predicted_step_cost
from lookahead_bench.engine.session import Session

pytestmark = pytest.mark.unit

# in_flight, accepted, seconds, draft, forward, verify, commit, depth, matched: three steps of prompt a, two of b.
STEPS = [
    ("a", 4, 3, 0.10, 0.01, 0.06, 0.01, 0.01, 3, 2),
    ("a", 4, 1, 0.10, 0.01, 0.07, 0.01, 0.00, 1, 0),
    ("a", 1, 1, 0.05, 0.01, 0.03, 0.00, 0.00, 0, 0),
    ("b", 4, 2, 0.10, 0.02, 0.06, 0.01, 0.01, 1, 1),
    ("b", 3, 2, 0.05, 0.00, 0.03, 0.01, 0.00, 2, 1),
]
NAMES = ["prompt_id", "in_flight", "accepted", "seconds", "draft_seconds", "forward_seconds", "verify_seconds",
         "commit_seconds", "depth", "matched"]  # fmt: skip
COSTS = [
    {"executor": "fork", "dtype": "float32", "curves": {"128": [[1, 9.0], [8, 9.0]]}},
    {"executor": "tree", "dtype": "bfloat16", "curves": {"128": [[1, 9.0], [8, 9.0]]}},
    {"executor": "tree", "dtype": "float32", "curves": {"1024": [[1, 2.0], [4, 3.0]], "128": [[1, 1.1], [3, 1.2], [4, 1.4]]}},
]


def made(**values):
    steps = pd.DataFrame(STEPS, columns=NAMES).assign(cell_id="x", turn=0, repeat=0)
    rows = [{"prompt_id": prompt, "turn": 0, "repeat": 0, "prompt_tokens": tokens, "new_tokens": 6, "executor": "tree",
             "dtype": "float32", "concurrency": 1} | values for prompt, tokens in (("a", 100), ("b", 700))]  # fmt: skip
    return pd.DataFrame(rows), steps


def test_columns_by_hand():
    cell, steps = made()
    found = decomposition_columns(cell, steps, cell, 9 / 5, COSTS)
    assert json.loads(found["acceptance_histogram"]) == {"1": 2, "2": 2, "3": 1}
    # Depth 1 was tried in four steps and right in three; depth 2 in two of those, right once; depth 3 once.
    assert json.loads(found["acceptance_by_depth"]) == [0.75, 0.5, 0.0]
    assert json.loads(found["tries_by_depth"]) == [4, 2, 1]
    shares = [found[f"{part}_share"] for part in ("draft", "forward", "verify", "commit", "rest")]
    assert shares == pytest.approx([0.05 / 0.4, 0.25 / 0.4, 0.04 / 0.4, 0.02 / 0.4, 0.04 / 0.4])
    assert sum(shares) == pytest.approx(1)
    # Row a lies at 103 tokens of context, row b at 703, which is nearer to 1024.
    assert found["predicted_step_cost"] == pytest.approx(np.mean([1.4, 1.4, 1.1, 3.0, 2 + 2 / 3]))
    assert found["predicted_speedup"] == pytest.approx(9 / 5 / found["predicted_step_cost"])


def test_the_prediction_is_of_the_rows_that_s_is_of():
    cell, steps = made()
    assert predicted_step_cost(cell, steps, cell[cell["prompt_id"] == "a"], COSTS) == pytest.approx((1.4 + 1.4 + 1.1) / 3)


def test_a_part_that_overlaps_makes_the_rest_negative_and_the_sum_stays():
    cell, steps = made()
    found = decomposition_columns(cell, steps.assign(forward_seconds=0.2), cell, 1.8, ())
    shares = [found[f"{part}_share"] for part in ("draft", "forward", "verify", "commit", "rest")]
    assert shares[-1] < 0 and sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(
    "values", [{"executor": "fork"}, {"executor": "stock"}, {"dtype": "float16"}, {"concurrency": 4}], ids=str
)
def test_without_a_curve_of_its_own_kind_nothing_is_predicted(values):
    cell, steps = made(**values)
    assert np.isnan(predicted_step_cost(cell, steps, cell, COSTS))


def test_a_step_beyond_the_curve_is_not_guessed():
    cell, steps = made()
    assert np.isnan(predicted_step_cost(cell, steps.assign(in_flight=5), cell, COSTS))
    assert np.isnan(predicted_step_cost(cell, steps, cell, ()))


def test_a_stock_engine_tells_no_parts_and_no_steps_tell_nothing():
    cell, steps = made(executor="stock")
    found = decomposition_columns(cell, steps, cell, 1.8, COSTS)
    assert np.isnan([found[f"{part}_share"] for part in ("draft", "forward", "verify", "commit", "rest")]).all()
    assert found["acceptance_by_depth"] == "[0.75, 0.5, 0.0]"
    nothing = decomposition_columns(made()[0], steps.iloc[:0], cell, np.nan, COSTS)
    assert {value for value in nothing.values() if isinstance(value, str)} == {""}


def test_steps_of_earlier_versions_say_no_depths():
    _, steps = made()
    assert acceptance_by_depth(steps.assign(depth=None, matched=None)).empty
    assert acceptance_by_depth(steps.drop(columns=["depth", "matched"])).empty
    _, drafted_nothing = made()
    assert acceptance_by_depth(drafted_nothing.assign(depth=0, matched=0)).empty


def stock_steps(chances, limit, draft, requests, ends_at=0.0, seed=0):
    """Steps of a stock engine as the session records them, of drafts that are right at depth d with ``chances[d]``.

    Outputs end after ``limit`` tokens, in the middle of a draft or not; and at any token, right or not, with ``ends_at``.
    """
    random, steps = np.random.default_rng(seed), []
    session = SimpleNamespace(_runner=None)
    for number in range(requests):
        emitted, entry, ended = 1, SimpleNamespace(internal_id="r"), False
        while not ended:
            right = random.random(draft) < chances[:draft]
            verified = draft + 1 if right.all() else int(right.argmin()) + 1
            stops = random.random(verified) < ends_at
            new = min(int(stops.argmax()) + 1 if stops.any() else verified, limit - emitted)
            emitted += new
            ended = bool(stops[:new].any()) or emitted == limit
            record = Session._record(session, entry, {"r": draft}, new, 0.1, ended)
            steps.append({"cell_id": "x", "prompt_id": str(number), "depth": record.depth, "matched": record.matched})
    return pd.DataFrame(steps)


@pytest.mark.parametrize(("limit", "ends_at"), [(4, 0.0), (7, 0.0), (1000, 0.1)])
def test_what_an_outputs_end_hides_moves_no_rate(limit, ends_at):
    """With outputs this short most steps are an output's last one; the chances are found all the same."""
    chances = np.array([0.7, 0.6, 0.5, 0.8])
    found = acceptance_by_depth(stock_steps(chances, limit, 4, 6000, ends_at)).set_index("depth")
    for depth, (rate, tries) in found[["rate", "tries"]].iterrows():
        chance = chances[depth - 1]
        assert abs(rate - chance) < 4 * np.sqrt(chance * (1 - chance) / tries), depth
    assert found.loc[1, "tries"] > 3000
