"""The engine against stock vLLM, on the real model in float32: same tokens, whatever is drafted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from lookahead_bench.data import encode_turn, load_prompts
from lookahead_bench.engine import EngineProcess
from lookahead_bench.engine.settings import engine_environment
from lookahead_bench.errors import EngineError
from lookahead_bench.records import EngineSpec, Request, StrategySpec

pytestmark = pytest.mark.model

MAX_MODEL_LEN = 512
ORACLE = "tests.oracle:Oracle"
METHODS = ("autoregressive", "lookahead", "prompt_lookup", "jacobi", "suffix", "token_recycling")


@pytest.fixture(scope="module")
def spec(model_path) -> EngineSpec:
    return EngineSpec(model_path, "test", enforce_eager=True, max_model_len=MAX_MODEL_LEN, max_num_seqs=8)


@pytest.fixture(scope="module")
def stock(spec, tmp_path_factory):
    """Plain decoding by vLLM as it is."""
    with EngineProcess(spec, tmp_path_factory.mktemp("stock") / "log") as engine:
        yield engine


@pytest.fixture(scope="module", params=["tree", "fork"])
def plugin(request, spec, tmp_path_factory):
    """The plug-in, with each executor."""
    own = replace(spec, executor=request.param, max_drafts=64)
    with EngineProcess(own, tmp_path_factory.mktemp(request.param) / "log") as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(packaged_sources, tokenizer) -> dict[str, tuple[int, ...]]:
    """Real prompts of both data sets, as token ids."""
    loaded = load_prompts({"sources": packaged_sources, "limit": 4, "path": None}, 0)
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
        # Something was really drafted and accepted: else this test would say nothing.
        assert result.step_compression > 1.3
        assert max(step.in_flight for step in result.steps) > 8


def test_both_executors_take_the_same_steps(spec, plain, prompts, tmp_path):
    requests = [
        drafted(name, ids, ORACLE, 32, parameters={"target": plain[name].token_ids, "seed": 7, "size": 12})
        for name, ids in list(prompts.items())[:4]
    ]
    outcomes = []
    for executor in ("tree", "fork"):
        own = replace(spec, executor=executor, max_drafts=12, role=executor)
        with EngineProcess(own, tmp_path / executor) as engine:
            results = engine.generate(requests, concurrency=2)
        outcomes.append([(r.token_ids, [step.accepted for step in r.steps]) for r in results])
    assert outcomes[0] == outcomes[1]


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


@pytest.mark.parametrize("length", [1, 2, 4, 5, MAX_MODEL_LEN - 6, MAX_MODEL_LEN - 2, MAX_MODEL_LEN - 1])
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
    ask = lambda seed: plugin.generate([drafted("x", ids, "lookahead", temperature=0.8, top_p=0.9, seed=seed)])[0]
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


@pytest.mark.parametrize("executor, prefix_caching", [("tree", False), ("tree", True), ("fork", True)])
def test_random_schedules(stock, spec, prompts, tmp_path, executor, prefix_caching):
    """Continuous batching, chunked prefill, preemption, cancelling: no output ever differs from plain.

    Together the three schedules hold more than 500 requests.
    """
    texts = list(prompts.values())
    items = []
    for number in range(170):
        start = number % 40
        prompt = texts[number % len(texts)][start : start + 20 + 7 * (number % 19)]
        items.append({"prompt": prompt, "max_new_tokens": 4 + number % 21})
    expected = stock.generate(
        [Request(str(n), i["prompt"], i["max_new_tokens"]) for n, i in enumerate(items)], concurrency=8
    )
    for number, (item, result) in enumerate(zip(items, expected)):
        target = result.token_ids
        oracle = {"target": target, "seed": number, "size": 16}
        method = ("lookahead", "prompt_lookup", ORACLE, ORACLE)[number % 4]
        item |= {"strategy": method, "parameters": oracle if method == ORACLE else {}}
        item |= {"expected": target, "finish_reason": result.finish_reason}
    # Both have room for thirty to fifty blocks of 32 tokens, which is less than their requests need.
    most, size, blocks = {"tree": (32, 72, {"block_size": 32}), "fork": (16, 356, {})}[executor]
    own = replace(
        spec, executor=executor, max_drafts=16, max_paths=8, max_num_seqs=most, prefix_caching=prefix_caching,
        kv_cache_bytes=size << 20, role="stress", extra={"max_num_batched_tokens": 640, **blocks},
    )
    fields = {name: getattr(own, name) for name in own.__dataclass_fields__}
    work = tmp_path / "work.json"
    work.write_text(json.dumps({"spec": fields, "seed": 5, "cancel": 0.1, "requests": items}))
    run = subprocess.run(
        [sys.executable, "-m", "tests.stress", str(work)],
        env=engine_environment(own, os.environ), capture_output=True, text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["wrong"] == []
    assert report["finished"] + report["cancelled"] == len(items)
    assert report["cancelled"] > 0
    assert report["preemptions"] > 0
    assert report["largest_batch"] > 8
    assert report["accepted"] > 0
