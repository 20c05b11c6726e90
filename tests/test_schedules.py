"""Continuous batching under pressure: no output ever differs from plain decoding's, whatever runs beside it."""

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
from lookahead_bench.records import EngineSpec, Request

pytestmark = pytest.mark.model

REQUESTS = 170
METHODS = ("lookahead", "prompt_lookup", "tests.oracle:Oracle", "tests.oracle:Oracle")
SCHEDULES = {
    ("tree", False): (32, 72, 640, {"block_size": 32}),
    ("tree", True): (64, 256, 2048, {"block_size": 32}),
    ("fork", True): (16, 356, 640, {}),
}
"""By executor and prefix caching: requests at once, cache in MiB, tokens a step, and vLLM's arguments for blocks.

The first and the last cache are too small for what may run at once, so that requests are preempted;
in the second all 64 have room.
"""


@pytest.fixture(scope="module")
def spec(model_path) -> EngineSpec:
    return EngineSpec(model_path, "stress", enforce_eager=True, max_model_len=512)


@pytest.fixture(scope="module")
def requests(spec, packaged_sources, tokenizer, tmp_path_factory) -> list[dict]:
    """Pieces of real prompts of many lengths, with a method and the output that stock vLLM gives each."""
    loaded = load_prompts({"sources": packaged_sources, "limit": 3, "path": None}, 0)
    texts = [encode_turn(prompt, 0, (), tokenizer) for dataset in loaded.values() for prompt in dataset]
    items = []
    for number in range(REQUESTS):
        start = number % 40
        prompt = texts[number % len(texts)][start : start + 20 + 7 * (number % 19)]
        items.append({"prompt": prompt, "max_new_tokens": 4 + number % 21})
    asked = [Request(str(number), item["prompt"], item["max_new_tokens"]) for number, item in enumerate(items)]
    with EngineProcess(spec, tmp_path_factory.mktemp("stock") / "log") as stock:
        expected = stock.generate(asked, concurrency=8)
    for number, (item, result) in enumerate(zip(items, expected, strict=True)):
        method = METHODS[number % len(METHODS)]
        oracle = {"target": result.token_ids, "seed": number, "size": 16}
        item |= {"strategy": method, "parameters": oracle if ":" in method else {}}
        item |= {"expected": result.token_ids, "finish_reason": result.finish_reason}
    return items


@pytest.mark.parametrize("executor, prefix_caching", SCHEDULES)
def test_random_schedules(spec, requests, tmp_path, executor, prefix_caching):
    """Requests come and go at random, with chunked prefill, preemption and cancelling; more than 500 in all."""
    most, size, tokens, blocks = SCHEDULES[executor, prefix_caching]
    own = replace(
        spec, executor=executor, max_drafts=16, max_paths=8, max_num_seqs=most, prefix_caching=prefix_caching,
        kv_cache_bytes=size << 20, extra={"max_num_batched_tokens": tokens, **blocks},
    )
    fields = {name: getattr(own, name) for name in own.__dataclass_fields__}
    work = tmp_path / "work.json"
    work.write_text(json.dumps({"spec": fields, "seed": 5, "cancel": 0.1, "requests": requests}))
    run = subprocess.run(
        [sys.executable, "-m", "tests.stress", str(work)],
        env=engine_environment(own, os.environ), capture_output=True, text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    report = json.loads(run.stdout.splitlines()[-1])
    print(executor, prefix_caching, report)
    assert report["wrong"] == []
    assert report["finished"] + report["cancelled"] == REQUESTS
    assert report["cancelled"] > 0
    if most == 64:
        assert report["largest_batch"] == 64
    else:
        assert report["preemptions"] > 0
        assert report["largest_batch"] > 8
    assert report["accepted"] > 0
