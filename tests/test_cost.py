"""The step-cost curve: drafts of a wanted size, what is made of their steps, and curves found again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lookahead_bench.cost.curve import COLUMNS, cost_table, points
from lookahead_bench.cost.filler import size_of_step
from lookahead_bench.cost.library import Circumstances, read_curve
from lookahead_bench.cost.plot import draw_cost
from lookahead_bench.data import encode_turn, load_prompts
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.models import ModelSource
from lookahead_bench.records import EngineSpec
from lookahead_bench.simulate import decode, greedy, hash_target
from lookahead_bench.strategy import make_strategy, strategies

SIZES = (1, 2, 5, 9)
CONTEXT_SOURCE = {"kind": "jsonl", "chat": False, "tokens": [5, 40]}


@pytest.mark.unit
@pytest.mark.parametrize("shape", ["chain", "binary", "wide"])
def test_drafts_have_the_scheduled_sizes_and_are_never_accepted(shape):
    target, prompt = hash_target(4, 1), [1, 2, 3]
    method = make_strategy("filler", in_flight=list(SIZES), shape=shape, seed=3)
    output, drafts = decode(method, target, prompt, 13, 600)
    assert output == greedy(target, prompt, 13)
    assert [len(draft) for draft in drafts] == [size_of_step(SIZES, 3, step) for step in range(12)]
    assert all(draft.wants_logits == (True,) * len(draft) for draft in drafts)
    leaves = max(drafts, key=len).leaves()
    assert len(leaves) == {"chain": 1, "binary": 5, "wide": 8}[shape]


@pytest.mark.unit
def test_every_round_has_every_size_in_an_order_of_its_own():
    rounds = [[size_of_step(SIZES, 0, 4 * number + place) for place in range(4)] for number in range(20)]
    assert all(sorted(order) == sorted(SIZES) for order in rounds)
    assert len({tuple(order) for order in rounds}) > 5


@pytest.mark.unit
def test_the_instrument_is_found_by_name_and_is_none_of_the_methods():
    assert make_strategy("filler").max_drafts == 63
    assert "filler" not in strategies()
    for parameter, value in [
        ("in_flight", [2, 4]), ("in_flight", [1, 1]), ("in_flight", "1"), ("in_flight", [1, 514]), ("in_flight", 3),
        ("shape", "star"), ("top_k", -1), ("seed", 0.5),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=f"^strategy.{parameter}="):
            make_strategy("filler", **{parameter: value})


def frames(cost, rounds=6, prompts=("a", "b"), slow=1.0, executor="tree"):
    """Rows and steps of a cost sweep in which a step of T tokens takes ``cost(T)`` seconds; prompt b is ``slow`` times slower."""
    parameters = json.dumps({"in_flight": list(SIZES), "seed": 0, "shape": "binary", "top_k": 0})
    common = {"dtype": "float32", "repeat": 0, "error": None, "prompt_tokens": 128}
    rows = [
        common | {"cell_id": "x", "strategy": "filler", "parameters": parameters, "executor": executor, "is_baseline": False,
                  "prompt_id": prompt, "decode_steps": None, "decode_seconds": None}
        for prompt in prompts
    ]  # fmt: skip
    rows.append(
        common | {"cell_id": "s", "strategy": "vllm", "parameters": "{}", "executor": "stock", "is_baseline": True,
                  "prompt_id": "a", "decode_steps": 4, "decode_seconds": 8.0}
    )  # fmt: skip
    steps = []
    for prompt in prompts:
        for step in range(rounds * len(SIZES)):
            size = size_of_step(SIZES, 0, step)
            drift = (1 + 0.2 * (step // len(SIZES))) * (slow if prompt == "b" else 1)
            steps.append({"cell_id": "x", "prompt_id": prompt, "repeat": 0, "step": step, "in_flight": size,
                          "seconds": cost(size) * drift})  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(steps)


@pytest.mark.unit
def test_ratios_are_those_of_the_steps_whatever_the_drift():
    table = cost_table(*frames(lambda size: 1 + size / 10, slow=3.0))
    assert list(table.columns) == list(COLUMNS)
    assert table["in_flight"].tolist() == list(SIZES)
    assert table["ratio"].tolist() == pytest.approx([(1 + size / 10) / 1.1 for size in SIZES])
    assert table["steps"].tolist() == [12] * 4
    # Drift is common to a round, so paired ratios have no spread at all.
    assert table["ratio_low"].tolist() == pytest.approx(table["ratio"].tolist())
    assert (table["stock_ratio"] == table["seconds"] / 2.0).all()


@pytest.mark.unit
def test_an_interval_has_the_ratio_of_noisy_steps():
    random = np.random.default_rng(5)
    table = cost_table(*frames(lambda size: (1 + size / 10) * random.lognormal(0, 0.2), rounds=40))
    truth = [(1 + size / 10) / 1.1 for size in SIZES]
    assert all(table["ratio_low"] <= truth) and all(table["ratio_high"] >= truth)
    assert all((table["ratio_high"] - table["ratio_low"])[1:] > 0.01)


@pytest.mark.unit
def test_a_cut_draft_and_a_failed_request_are_left_out():
    rows, steps = frames(lambda size: float(size))
    cut = (steps["prompt_id"] == "a") & (steps["in_flight"] == 9)
    steps.loc[cut, ["in_flight", "seconds"]] = [3, 99.0]
    table = cost_table(rows, steps).set_index("in_flight")
    assert table.loc[9, ["steps", "ratio"]].tolist() == [6, 9.0]
    rows.loc[rows["prompt_id"] == "b", "error"] = "failed"
    assert set(cost_table(rows, steps)["in_flight"]) == {1, 2, 5}
    assert cost_table(rows[rows["strategy"] == "vllm"], steps).empty


@pytest.mark.unit
def test_points_never_fall():
    lines = pd.DataFrame({"in_flight": [4, 1, 2], "ratio": [1.3, 1.0, 1.4]})
    assert points(lines) == [[1, 1.0], [2, 1.4], [4, 1.4]]


@pytest.mark.unit
def test_the_figure_is_drawn(tmp_path):
    tables = [cost_table(*frames(lambda size: 1 + size / 10, executor=executor)) for executor in ("tree", "fork")]
    assert draw_cost(pd.concat(tables), tmp_path).stat().st_size > 10_000
    assert (tmp_path / "cost.svg").is_file()


@pytest.mark.unit
def test_a_curve_is_that_of_its_circumstances_alone(monkeypatch):
    engine, model = EngineSpec("/models/x", "plugin", "tree"), ModelSource("x", "/models/x", "abc", True)
    key = Circumstances.of(engine, model).key()
    assert key == Circumstances.of(replace(engine, model="/elsewhere/x", max_drafts=9), model).key()
    others = [
        Circumstances.of(replace(engine, **{name: value}), model).key()
        for name, value in [
            ("dtype", "bfloat16"), ("executor", "fork"), ("threads", 77), ("native_kernels", True),
            ("enforce_eager", True), ("extra", {"block_size": 32}),
        ]
    ]  # fmt: skip
    others.append(Circumstances.of(engine, replace(model, digest="abd")).key())
    monkeypatch.setattr("lookahead_bench.provenance.cpu", lambda: {"model": "another", "usable_cores": 64})
    others.append(Circumstances.of(engine, model).key())
    assert len({key, *others}) == len(others) + 1


@pytest.mark.unit
def test_the_curve_of_the_nearest_context_is_read(tmp_path):
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"curves": {"128": [[1, 1.0], [4, 1.1]], "1024": [[1, 1.0], [4, 1.3]]}}))
    assert read_curve(path, 512) == [[1, 1.0], [4, 1.1]]
    assert read_curve(path, 900) == [[1, 1.0], [4, 1.3]]
    for content in ("", "{}", "[]", '{"curves": {}}', '{"curves": {"x": []}}'):
        path.write_text(content)
        with pytest.raises(InputError, match="must be a file of curves"):
            read_curve(path, 512)


@pytest.mark.unit
def test_prompts_are_cut_to_each_length(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"p{number}", "prompt": f"word{number} " * 30}) + "\n" for number in range(5)))
    dataset = {"sources": {"context": CONTEXT_SOURCE}, "path": str(file), "limit": 2}
    loaded = load_prompts(dataset, 0)
    assert list(loaded) == ["context_5", "context_40"]

    class Words:
        """One token per word."""

        chat_template = bos_token_id = None

        def __call__(self, text):
            return {"input_ids": [len(word) for word in text.split()]}

    for length in (5, 40):
        prompts = loaded[f"context_{length}"]
        assert [prompt.prompt_id.split("/")[0] for prompt in prompts] == [p.prompt_id.split("/")[0] for p in loaded["context_5"]]
        assert all(len(encode_turn(prompt, 0, (), Words())) == length for prompt in prompts)
    with pytest.raises(InputError, match="too few to be cut to 5000"):
        encode_turn(replace(loaded["context_5"][0], exact_tokens=5000), 0, (), Words())
    for tokens in ([], 5, [0]):
        with pytest.raises(ConfigError, match="^dataset.sources.context.tokens="):
            load_prompts({"sources": {"context": CONTEXT_SOURCE | {"tokens": tokens}}, "path": str(file)}, 0)
