"""The engine against stock vLLM, on the real model in float32: same tokens, whatever is drafted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookahead_bench.data import encode_turn, load_prompts
from lookahead_bench.engine import EngineProcess
from lookahead_bench.engine.settings import uses_native
from lookahead_bench.errors import EngineError
from lookahead_bench.records import EngineSpec, Request, StrategySpec
from lookahead_bench.strategy import Step
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, verify
from tests.oracle import Oracle

pytestmark = pytest.mark.model

MAX_MODEL_LEN = 512
ORACLE = "tests.oracle:Oracle"
METHODS = ("autoregressive", "lookahead", "prompt_lookup", "jacobi", "suffix", "token_recycling", "adaptive")


@pytest.fixture(scope="module")
def spec(model_path) -> EngineSpec:
    return EngineSpec(model_path, "test", enforce_eager=True, max_model_len=MAX_MODEL_LEN, max_num_seqs=8)


@pytest.fixture(scope="module")
def stock(spec, tmp_path_factory):
    """Plain decoding by vLLM as it is."""
    with EngineProcess(spec, tmp_path_factory.mktemp("stock") / "log") as engine:
        yield engine


@pytest.fixture(scope="module", params=["tree", "fork", "tree on vLLM's kernels"])
def plugin(request, spec, tmp_path_factory):
    """The plug-in, with each executor on the kernels that it has by default, and without the project's own."""
    executor, _, on_vllms = request.param.partition(" ")
    own = replace(spec, executor=executor, max_drafts=64, native_kernels=uses_native(False if on_vllms else None))
    with EngineProcess(own, tmp_path_factory.mktemp(executor) / "log") as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(packaged_sources, tokenizer) -> dict[str, tuple[int, ...]]:
    """Real prompts of both data sets, as token ids."""
    loaded = load_prompts({"sources": packaged_sources, "limit": 3, "path": None}, 0)
    return {
        prompt.prompt_id: encode_turn(prompt, 0, (), tokenizer)[: MAX_MODEL_LEN - 64]
        for dataset in loaded.values()
        for prompt in dataset
    }


@pytest.fixture(scope="module")
def plain(stock, prompts):
    """Plain greedy output of every prompt, 48 tokens."""
    requests = [Request(name, ids, 48) for name, ids in prompts.items()]
    return dict(zip(prompts, stock.generate(requests, concurrency=1)))


def drafted(name: str, ids, method: str, new_tokens: int = 48, **rest) -> Request:
    parameters = rest.pop("parameters", {})
    return Request(name, ids, new_tokens, StrategySpec(method, parameters), **rest)


def test_random_trees_give_the_plain_output(plugin, prompts, plain):
    requests = [
        drafted(f"{name} {seed}", ids, ORACLE, parameters={"target": plain[name].token_ids, "seed": seed})
        for name, ids in prompts.items()
        for seed in range(2)
    ]
    for request, result in zip(requests, plugin.generate(requests, concurrency=5)):
        expected = plain[request.request_id.rsplit(" ", 1)[0]]
        assert result.error is None
        assert result.token_ids == expected.token_ids
        assert result.text == expected.text
        assert result.finish_reason == expected.finish_reason
        assert sum(step.accepted for step in result.steps) == len(result.token_ids) - 1
        assert all(step.accepted == step.matched + 1 for step in result.steps[:-1])
        assert all(step.matched <= step.depth <= step.matched + 1 for step in result.steps)
        # Something was really drafted and accepted: else this test would say nothing.
        assert result.step_compression > 1.3
        assert max(step.in_flight for step in result.steps) > 8


def test_each_step_emits_what_verification_of_its_tree_says(plugin, prompts, plain):
    """The steps are foretold from the drafts and the known output, for both executors alike."""
    for name, ids in list(prompts.items())[:4]:
        target = plain[name].token_ids[:32]
        parameters = {"target": target, "seed": 7, "size": 12}
        (result,) = plugin.generate([drafted(name, ids, ORACLE, 32, parameters=parameters)])
        assert [step.accepted for step in result.steps] == foretold(ids, target, parameters)


def foretold(prompt_ids, target, parameters) -> list[int]:
    """Tokens that each step of an oracle emits; a node off the target's path is never entered."""
    oracle = Oracle(**parameters)
    oracle.begin(prompt_ids)
    steps, emitted = [], 0
    tree = TokenTree.root(prompt_ids[-1])
    while emitted < len(target):
        choices = [
            target[emitted + depth] if wanted and emitted + depth < len(target) else NO_CHOICE
            for wanted, depth in zip(tree.wants_logits, tree.depths)
        ]
        verdict = verify(tree, choices)
        new = verdict.tokens[: len(target) - emitted]
        steps.append(len(new))
        oracle.observe(Step(tree, tuple(choices), verdict.path, new))
        emitted += len(new)
        tree = oracle.draft(oracle.max_drafts)
    return steps[1:]


@pytest.mark.parametrize("plugin", ["tree"], indirect=True)
def test_the_same_again_whenever_and_in_whatever_order_it_is_asked(plugin, prompts):
    """Tokens, S and acceptance, step by step: nothing that a request leaves behind moves the next one."""
    some = list(prompts.items())[2:4]
    asked = [drafted(f"{method} {name}", ids, method, 12) for method in METHODS for name, ids in some]
    first, again = (
        {result.request_id: deterministic(result) for result in plugin.generate(order)} for order in (asked, asked[::-1])
    )
    assert first == again
    assert all(len(tokens) > 1 for tokens, *_ in first.values())
    assert any(max(matched for *_, matched in steps) > 0 for *_, steps in first.values())


def deterministic(result):
    """All of a result that is no time."""
    steps = [(step.in_flight, step.accepted, step.depth, step.matched) for step in result.steps]
    return result.token_ids, result.finish_reason, result.step_compression, steps


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_plain_output(plugin, prompts, plain, method):
    requests = [drafted(name, ids, method) for name, ids in prompts.items()]
    for request, result in zip(requests, plugin.generate(requests, concurrency=4)):
        assert result.token_ids == plain[request.request_id].token_ids
        assert result.finish_reason == plain[request.request_id].finish_reason


def test_nothing_of_one_request_leaks_into_the_next(plugin, prompts):
    x, y = list(prompts.items())[:2]
    requests = [drafted(str(n), ids, "lookahead") for n, (_, ids) in enumerate([x, y, x])]
    first, _, again = plugin.generate(requests, concurrency=1)
    assert first.token_ids == again.token_ids
    assert [(s.in_flight, s.accepted) for s in first.steps] == [(s.in_flight, s.accepted) for s in again.steps]


def test_the_end_inside_an_accepted_run(stock, plugin, prompts, plain):
    """A token that the output holds is declared an end: nothing after it comes out or is counted."""
    name = next(name for name in prompts if len(set(plain[name].token_ids)) > 12)
    target = plain[name].token_ids
    for position in (5, 9, 12):
        ends = (target[position], target[position + 3])
        expected = stock.generate([Request("x", prompts[name], 48, stop_token_ids=ends)])[0]
        result = plugin.generate(
            [drafted("x", prompts[name], ORACLE, stop_token_ids=ends,
                     parameters={"target": target, "luck": 1.0, "seed": position})]
        )[0]
        assert (result.token_ids, result.finish_reason) == (expected.token_ids, "stop")
        assert sum(step.accepted for step in result.steps) == len(result.token_ids) - 1


def test_stop_strings_end_the_output_as_in_plain_decoding(stock, plugin, prompts, plain):
    name = next(iter(prompts))
    text = plain[name].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    expected = stock.generate([Request("x", prompts[name], 48, stop=(stop,))])[0]
    result = plugin.generate(
        [drafted("x", prompts[name], ORACLE, stop=(stop,),
                 parameters={"target": plain[name].token_ids, "luck": 1.0})]
    )[0]
    assert result.finish_reason == expected.finish_reason == "stop"
    assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
    assert sum(step.accepted for step in result.steps) == len(result.token_ids) - 1


@pytest.mark.parametrize("new_tokens", [1, 2, 5])
def test_max_new_tokens_smaller_than_a_run(plugin, prompts, plain, new_tokens):
    name = next(iter(prompts))
    target = plain[name].token_ids
    request = drafted("x", prompts[name], ORACLE, new_tokens, parameters={"target": target, "luck": 1.0})
    result = plugin.generate([request])[0]
    assert result.token_ids == target[:new_tokens]
    assert result.finish_reason == "length"


def test_min_tokens_bars_the_end_until_then(stock, plugin, prompts, plain):
    name = next(iter(prompts))
    end = plain[name].token_ids[4]
    expected = stock.generate([Request("x", prompts[name], 24, min_tokens=9, stop_token_ids=(end,))])[0]
    result = plugin.generate(
        [drafted("x", prompts[name], "lookahead", 24, min_tokens=9, stop_token_ids=(end,))]
    )[0]
    assert result.token_ids == expected.token_ids
    assert len(result.token_ids) >= 9


@pytest.mark.parametrize("length", [1, 2, 5, MAX_MODEL_LEN - 6, MAX_MODEL_LEN - 2, MAX_MODEL_LEN - 1])
def test_short_and_long_prompts(stock, plugin, prompts, length):
    """From one token to one below the limit, one text and one repeated token."""
    text = sum(prompts.values(), ())
    for ids in (text[:length], (text[7],) * length):
        expected = stock.generate([Request("x", ids, 16)])[0]
        for method in ("lookahead", "prompt_lookup"):
            result = plugin.generate([drafted("x", ids, method, 16)])[0]
            assert (result.token_ids, result.finish_reason) == (expected.token_ids, expected.finish_reason)


def test_a_request_that_vllm_refuses_fails_alone(plugin, prompts, plain):
    name, ids = next(iter(prompts.items()))
    bad = drafted("bad", (10**9,), "lookahead")
    good = drafted("good", ids, "lookahead")
    empty = drafted("empty", (), "lookahead")
    failed, result, refused = plugin.generate([bad, good, empty], concurrency=2)
    assert failed.error is not None and "vocabulary" in failed.error
    assert refused.error is not None
    assert result.token_ids == plain[name].token_ids


def test_streaming_gives_every_step_its_tokens(plugin, prompts, plain):
    name, ids = next(iter(prompts.items()))
    chunks = list(plugin.stream([drafted("x", ids, "lookahead")]))
    assert sum((chunk.token_ids for chunk in chunks), ()) == plain[name].token_ids
    result = chunks[-1].generation
    assert result is not None and len(chunks) == len(result.steps) + 1
    assert [len(chunk.token_ids) for chunk in chunks[1:]] == [step.accepted for step in result.steps]
    # Whoever stops reading early can use the engine on.
    for _ in plugin.stream([drafted("x", ids, "lookahead")]):
        break
    assert plugin.generate([drafted("y", ids, "lookahead")])[0].token_ids == plain[name].token_ids


def test_drafts_are_counted_as_computed(plugin, prompts):
    ids = next(iter(prompts.values()))
    result = plugin.generate([drafted("x", ids, "autoregressive", 8)])[0]
    assert all((step.in_flight, step.accepted) == (1, 1) for step in result.steps)
    assert all(step.seconds > 0 and step.forward_seconds > 0 for step in result.steps)


def test_seeded_sampling_repeats_itself(plugin, prompts):
    ids = next(iter(prompts.values()))
    ask = lambda seed: plugin.generate([drafted("x", ids, "lookahead", 16, temperature=1.5, seed=seed)])[0]
    assert ask(1).token_ids == ask(1).token_ids
    assert ask(1).token_ids != ask(2).token_ids


def test_an_engine_that_cannot_start_says_why(spec, tmp_path):
    engine = EngineProcess(replace(spec, kv_cache_bytes=1 << 20), tmp_path / "log")
    with pytest.raises(EngineError, match=r"test failed: .*cache blocks.*log"):
        engine.start()
    too_small = replace(spec, executor="fork", max_drafts=64, max_num_seqs=64)
    with pytest.raises(EngineError, match=r"executor 'fork' sets aside"):
        EngineProcess(too_small, tmp_path / "fork.log").start()


def test_an_engine_that_dies_is_an_error(spec, prompts, tmp_path):
    engine = EngineProcess(replace(spec, role="doomed"), tmp_path / "log")
    engine.start()
    engine._process.kill()
    with pytest.raises(EngineError, match="doomed died"):
        engine.generate([Request("x", next(iter(prompts.values())), 4)])
    with pytest.raises(EngineError, match="not running"):
        engine.generate([Request("x", next(iter(prompts.values())), 4)])
