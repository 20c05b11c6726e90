"""The step-cost curve: drafts of a wanted size, what is made of their steps, and curves found again."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lookahead_bench.cost.choose import checkable, choose_curves
from lookahead_bench.cost.curve import COLUMNS, cost_table, points
from lookahead_bench.cost.filler import size_of_step
from lookahead_bench.cost.library import Circumstances, find_curve, read_curve, read_stock_costs, save_curves, step_costs
from lookahead_bench.data import encode_turn, load_prompts
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.methods import Method
from lookahead_bench.models import ModelSource
from lookahead_bench.records import EngineSpec, StrategySpec
from lookahead_bench.report.plots import draw_cost
from lookahead_bench.simulate import decode, greedy, hash_target
from lookahead_bench.store import Results
from lookahead_bench.strategy import make_strategy, strategies
from strategies.cost_curve import DEFAULT_COST

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
                  "prompt_id": "a", "decode_steps": 4, "decode_seconds": 32.0}
    )  # fmt: skip
    # A stock step takes 2 seconds, but for one that was disturbed.
    steps = [
        {"cell_id": "s", "prompt_id": "a", "repeat": 0, "step": step, "in_flight": 1, "seconds": 26.0 if step == 3 else 2.0}
        for step in range(4)
    ]
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
    # A median over steps on both sides: one slow step moves neither.
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
def test_the_figure_is_drawn_with_its_numbers(tmp_path):
    runs = [frames(lambda size: 1 + size / 10, executor=executor) for executor in ("tree", "fork")]
    runs = [[part.assign(cell_id=part["cell_id"] + str(number)) for part in run] for number, run in enumerate(runs)]
    rows, steps = map(pd.concat, zip(*runs))
    rows = rows.assign(model="m")
    drawing = draw_cost(Results(rows, steps, pd.DataFrame(), {}, {}, tmp_path))
    assert [panel.get_title() for panel in drawing.figure.axes] == ["fork, binary drafts", "tree, binary drafts"]
    assert drawing.data.equals(cost_table(rows, steps))
    assert draw_cost(Results(rows[rows["strategy"] == "vllm"], steps, pd.DataFrame(), {}, {}, tmp_path)) is None


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


CURVE = [[1, 1.0], [4, 1.3]]
MODEL = ModelSource("x", "/models/x", "abc", True)


def adaptive(cost, executor="tree", title=""):
    return Method(StrategySpec("adaptive", {"cost": cost, "max_drafts": 8}), executor, title)


def engine_of(method):
    return EngineSpec("/models/x", "plugin", method.executor)


def store_curve(results_dir, executor="tree", curve=CURVE):
    """A stored curve of the engine that ``engine_of`` gives."""
    name = f"x-float32-{executor}-{Circumstances.of(EngineSpec('', 'plugin', executor), MODEL).key()}.json"
    path = results_dir / "cost" / "curves" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"curves": {"512": curve}}))
    return path


@pytest.mark.unit
def test_a_measured_curve_is_taken_where_it_was_measured_and_is_in_the_parameters(tmp_path):
    path = store_curve(tmp_path)
    for cost in ("auto", None, "measured", str(path)):
        (method,), (note,) = choose_curves([adaptive(cost)], engine_of, MODEL, tmp_path)
        assert method.spec.parameters == {"cost": CURVE, "max_drafts": 8}
        assert str(path) in note
    for executor, cost in [("fork", "auto"), ("tree", "default")]:
        (method,), (note,) = choose_curves([adaptive(cost, executor)], engine_of, MODEL, tmp_path)
        assert method.spec.parameters["cost"] == DEFAULT_COST
        assert "default step costs" in note
    with pytest.raises(ConfigError, match="^strategy.cost='measured': must be measured first"):
        choose_curves([adaptive("measured", "fork")], engine_of, MODEL, tmp_path)
    given, notes = choose_curves([adaptive([[1, 1.0]]), Method(StrategySpec("suffix"), "tree")], engine_of, MODEL, tmp_path)
    assert given[0].spec.parameters["cost"] == [[1, 1.0]] and notes == ()


@pytest.mark.unit
def test_two_words_for_one_curve_are_one_cell_and_two_titles_for_it_are_refused(tmp_path):
    chosen, _ = choose_curves([adaptive("auto"), adaptive("default"), adaptive(CURVE)], engine_of, MODEL, tmp_path)
    assert [method.spec.parameters["cost"] for method in chosen] == [DEFAULT_COST, CURVE]
    with pytest.raises(ConfigError, match="^sweep.variants.b="):
        choose_curves([adaptive("auto", title="a"), adaptive("default", title="b")], engine_of, MODEL, tmp_path)


@pytest.mark.unit
def test_a_text_that_is_no_curve_is_refused_by_its_key():
    with pytest.raises(ConfigError, match="^methods.adaptive.cost='fast': must be auto, measured, default, a file"):
        checkable(adaptive("fast").spec, "methods.adaptive.{}".format)


@pytest.mark.unit
def test_curves_of_a_sweep_are_stored_and_found(tmp_path):
    tree, stock = EngineSpec("/models/x", "plugin", "tree"), EngineSpec("/models/x", "vllm")
    plan = SimpleNamespace(engines=(stock, tree))
    table = cost_table(*frames(lambda size: 1 + size / 10))
    (path,) = save_curves(table, plan, MODEL, tmp_path / "run", tmp_path)
    assert find_curve(tree, MODEL, tmp_path) == path
    assert find_curve(replace(tree, dtype="bfloat16"), MODEL, tmp_path) is None
    assert read_curve(path, 512) == points(table)
    # The plug-in's plain step took 1.1 * 1.5 seconds (the median drift), stock decoding's 2.
    assert read_stock_costs(path) == {"128": [[1, pytest.approx(0.825)], *([n, pytest.approx(0.825 * c)] for n, c in points(table)[1:])]}


@pytest.mark.unit
def test_a_run_gets_the_curves_of_its_engines_but_not_its_own(tmp_path):
    tree, fork, stock = (EngineSpec("/models/x", "r", executor) for executor in ("tree", "fork", "stock"))
    table = cost_table(*frames(lambda size: 1 + size / 10))
    (path,) = save_curves(table, SimpleNamespace(engines=(stock, tree)), MODEL, tmp_path / "run", tmp_path)
    (found,) = step_costs((stock, tree, fork), MODEL, tmp_path, "another")
    assert (found["executor"], found["dtype"], found["run"], found["file"]) == ("tree", "float32", "run", str(path))
    assert found["curves"] == read_stock_costs(path) and json.loads(json.dumps(found)) == found
    assert step_costs((stock, tree), MODEL, tmp_path, "run") == []


@pytest.mark.unit
@pytest.mark.parametrize("ratios", [None, {}, {"128": None}])
def test_without_a_plain_stock_step_no_cost_is_against_it(tmp_path, ratios):
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"curves": {"128": [[1, 1.0]]}} | ({} if ratios is None else {"plain_over_stock": ratios})))
    assert read_stock_costs(path) == {}
    path.write_text("[]")
    with pytest.raises(InputError, match="must be a file of curves"):
        read_stock_costs(path)
