"""Outputs of earlier requests serve later ones only where that is asked for, within bounds, and the results say so."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_bench.errors import ConfigError
from lookahead_bench.measure import measure
from lookahead_bench.plan import Plan
from lookahead_bench.pools import Pools
from lookahead_bench.progress import LineProgress
from lookahead_bench.records import Cell, EngineSpec, Prompt, StrategySpec
from lookahead_bench.report import words
from lookahead_bench.simulate import decode, greedy, hash_target
from lookahead_bench.store import ResultStore
from strategies.output_pool import GENERATION_TOKENS, SEPARATOR, OutputPool, Reader
from tests.example_results import METHODS, store_run
from tests.test_measure import Watcher, interrupt
from tests.test_plan import plan_of

SHARED = {"shared_pool": True}
OWN = StrategySpec("suffix", SHARED, pool="own")


@pytest.mark.unit
def test_the_pool_keeps_two_generations_at_most():
    draw = random.Random(0)
    pool = OutputPool()
    for _ in range(60):
        pool.add([draw.randrange(50_000) for _ in range(2000)])
    assert len(pool.generations) == 2
    for automaton in pool.generations:
        assert max(automaton.length) <= GENERATION_TOKENS
        assert len(automaton.length) <= 2 * GENERATION_TOKENS
    # The latest ones are there: the older generation is full.
    assert max(pool.generations[1].length) > GENERATION_TOKENS - 2001


@pytest.mark.unit
def test_of_a_very_long_output_the_end_is_kept():
    pool = OutputPool()
    pool.add(range(GENERATION_TOKENS + 500))
    reader = Reader(pool.generations[0])
    reader.follow([498, 499, 500])
    assert reader.matched == 0
    reader.follow([501, 502])
    assert reader.matched == 2


@pytest.mark.unit
@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=20))
def test_a_reader_stands_at_the_end_of_its_text_while_the_pool_grows(events):
    pool, text, outputs = OutputPool(), [], []
    reader = Reader(pool.generations[0])
    for is_output, tokens in events:
        if is_output:
            pool.add(tokens)
            outputs.append(tokens)
        else:
            # What stood in the pool when the tokens came is found, and nothing is matched that does not stand there.
            before = longest_end(text, outputs) if not text else reader.matched
            reader.follow(tokens)
            text += tokens
            assert reader.matched <= longest_end(text, outputs)
            assert reader.matched >= min(before + len(tokens), longest_end(tokens, outputs))
        reader.settle()
        state = 0
        for token in text[len(text) - reader.matched :]:
            state = reader.automaton.following[state][token]
        assert state == reader.match


def longest_end(text, outputs) -> int:
    """Tokens of the longest end of ``text`` that stands in one of ``outputs``."""
    places = [output[i:j] for output in outputs for i in range(len(output)) for j in range(i + 1, len(output) + 1)]
    return max((n for n in range(len(text) + 1) if n == 0 or text[-n:] in places), default=0)


@pytest.mark.unit
@settings(max_examples=40)
@given(prompts=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_drafts_out_of_a_pool_change_nothing_but_speed(prompts, seed):
    target, pools = hash_target(5, 3), Pools()
    for prompt in prompts:
        output, drafts = decode(pools.strategy(OWN), target, prompt, 30, 5, random.Random(seed))
        assert output == greedy(target, prompt, 30)
        assert all(SEPARATOR not in draft.tokens for draft in drafts)
        pools.add(OWN, output)


@pytest.mark.unit
def test_only_requests_of_an_equal_spec_and_engine_share():
    prompt, output = [1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]
    pools = Pools()
    pools.add(OWN, output)

    def drafted(pools, spec):
        method = pools.strategy(spec)
        method.begin([*prompt, 4, 5])
        return method.draft(16).tokens[1:]

    assert drafted(pools, OWN) == (6, 7, 8, 9, 10, 11)
    others = [
        StrategySpec("suffix", SHARED, pool="other"),
        StrategySpec("suffix", {**SHARED, "max_drafts": 9}, pool="own"),
        StrategySpec("suffix", SHARED),
        StrategySpec("suffix", {}, pool="own"),
    ]
    assert [drafted(pools, spec) for spec in others] == [()] * 4
    assert drafted(Pools(), OWN) == ()
    pools.add(others[2], output)
    pools.add(others[3], output)
    assert [drafted(pools, spec) for spec in others] == [()] * 4


@pytest.mark.unit
def test_a_cell_has_a_pool_of_its_own_only_where_it_is_asked_for():
    plan = plan_of("strategy=suffix", "strategy.shared_pool=true", "baselines=[vllm,vllm_suffix,autoregressive]")
    pools = {cell.cell_id: cell.strategy.pool for cell in plan.cells}
    assert {key: pool for key, pool in pools.items() if pool} == {
        cell.cell_id: cell.cell_id for cell in plan.cells if cell.strategy.name == "suffix"
    }
    assert [cell.shares_pool for cell in plan_of("+sweep=strategies").cells if cell.shares_pool] == []


@pytest.mark.unit
@pytest.mark.parametrize(
    "argv, name",
    [
        (["strategy=suffix", "strategy.shared_pool=true"], "suffix"),
        (["strategy=vllm_suffix", "strategy.suffix_decoding_max_cached_requests=100"], "vllm_suffix"),
        # vLLM's own default is to search earlier outputs.
        (["strategy=vllm_suffix", "~strategy.suffix_decoding_max_cached_requests"], "vllm_suffix"),
    ],
)
def test_repeats_are_refused_where_a_repeat_would_find_its_own_answer(argv, name):
    assert [cell.strategy.name for cell in plan_of(*argv).cells if cell.shares_pool] == [name] * 2
    with pytest.raises(ConfigError, match=rf"run.repeats=2: must be 1 .*\({name}\)"):
        plan_of(*argv, "run.repeats=2")


@pytest.mark.unit
def test_results_say_shared_pool(tmp_path):
    def change(row):
        return row | {"shared_pool": row["ngram"] == 2} | ({"executor": "stock"} if row["ngram"] == 2 else {})

    results = store_run(tmp_path, METHODS[:5], prompts=6, change=change)
    marked = [name for name in words.labels(results).values() if "(shared pool)" in name]
    assert marked == ["lookahead W5 N2 G5 (shared pool)"] * 2
    said = [line for line in words.warnings(results) if "earlier prompts" in line or "pool" in line]
    assert len(said) == 3 and "vLLM's pool is its process's" in said[2]
    with_empty = SimpleNamespace(**{name: getattr(results, name) for name in ("rows", "summary")})
    with_empty.provenance = {"pools_emptied": ["mt_bench, vllm_suffix"]}
    assert any("mt_bench, vllm_suffix: the run was interrupted" in line for line in words.warnings(with_empty))


@pytest.mark.model
def test_a_run_that_is_taken_up_again_goes_on_with_its_pool(model_source, tokenizer, tmp_path):
    """Twice the same plan, once in one go and once interrupted: equal rows; and the pool did serve."""
    question = "List the days of the week, one a line."
    prompts = {"talk": [Prompt(name, "talk", (question,)) for name in "abc"]}
    engine = EngineSpec(
        model_source.path, "plugin", "tree", max_drafts=16, max_model_len=256, kv_cache_bytes=1 << 28, enforce_eager=True
    )
    cells = tuple(
        Cell(f"id-{pool}", "talk", StrategySpec("suffix", {"shared_pool": pool}, pool=f"id-{pool}" if pool else None), engine, 40)
        for pool in (True, False)
    )
    plan = Plan("test", cells, repeats=1, seed=0, warmup_tokens=20, plan_id="pooled")
    told = []
    for folder, watcher in (("whole", Watcher()), ("broken", Watcher(3, interrupt)), ("broken", Watcher())):
        with ResultStore.open_run(tmp_path / folder, plan.sweep, plan.plan_id) as store:
            progress = LineProgress(SimpleNamespace(print=lambda text, **_: None))
            try:
                measure(plan, prompts, tokenizer, store, watcher, progress, store.folder / "logs", model_source)
            except KeyboardInterrupt:
                pass
            told.append(store.frames()[0].sort_values(["cell_id", "prompt_id"]))
    exact = ["cell_id", "prompt_id", "shared_pool", "decode_steps", "drafted_tokens"]
    whole, interrupted, resumed = told
    assert len(interrupted) == 3
    assert whole[exact].values.tolist() == resumed[exact].values.tolist()
    assert len({tuple(ids) for ids in whole["token_ids"]}) == 1
    steps = {shared: sorted(rows["decode_steps"]) for shared, rows in whole.groupby("shared_pool")}
    # The same question three times: without a pool as many steps each time, with one far fewer after the first.
    assert len(set(steps[False])) == 1
    assert steps[True][2] == steps[False][0] and steps[True][1] < 0.6 * steps[True][2]
