"""A random, seeded schedule of requests through the plug-in; prints what happened as one line of JSON.

Requests arrive, finish and are cancelled at different steps; the KV cache is too small for all of
them (preemption) and prompts come in pieces beside decoding rows (chunked prefill). Every output is
compared with the same request's plain greedy output, which the caller hands in.

    python -m tests.stress WORK.json
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from lookahead_bench.engine.session import Session
from lookahead_bench.records import EngineSpec, Request, StrategySpec

FIRST = 100
"""Requests that are there before the first step: more than an engine takes at once."""


def run(work: dict) -> dict:
    """Run one schedule.

    Args:
        work: ``spec`` (of the engine), ``seed``, ``cancel`` (share of requests dropped on the way),
            ``requests``: a list of {prompt, max_new_tokens, strategy, parameters, expected, finish_reason}.

    Returns:
        Counts: finished, cancelled, wrong, preemptions, most at once, steps, drafted and accepted tokens.
    """
    chance = random.Random(work["seed"])
    session = Session(EngineSpec(**work["spec"]))
    waiting = list(enumerate(work["requests"]))
    chance.shuffle(waiting)
    doomed: dict[str, int] = {}
    report = dict.fromkeys(
        ("finished", "cancelled", "preemptions", "largest_batch", "steps", "drafted", "accepted"), 0
    ) | {"wrong": []}
    preempted: dict[str, int] = {}
    arriving = FIRST
    while waiting or session.num_running:
        for _ in range(min(len(waiting), arriving)):
            index, item = waiting.pop()
            spec = StrategySpec(item["strategy"], item["parameters"])
            request = Request(str(index), tuple(item["prompt"]), item["max_new_tokens"], spec)
            assert session.add(request) is None
            if chance.random() < work["cancel"]:
                doomed[str(index)] = chance.randint(1, 12)
        arriving = chance.choice((0, 0, 1, 1, 2, 5, 20))
        chunks = session.step()
        ended = sum(chunk.generation is not None for chunk in chunks)
        for chunk in chunks:
            if chunk.generation is not None:
                doomed.pop(chunk.request_id, None)
                _check(work["requests"][int(chunk.request_id)], chunk.generation, report)
        scheduler = session._scheduler
        report["largest_batch"] = max(report["largest_batch"], len(scheduler.running) + ended)
        for request_id, request in scheduler.requests.items():
            preempted[request_id] = max(preempted.get(request_id, 0), request.num_preemptions)
        report["steps"] += 1
        for request_id in list(doomed):
            doomed[request_id] -= 1
            if doomed[request_id] <= 0:
                del doomed[request_id]
                session.cancel(request_id)
                report["cancelled"] += 1
    report["preemptions"] = sum(preempted.values())
    return report


def _check(item: dict, generation, report: dict) -> None:
    report["finished"] += 1
    report["drafted"] += sum(step.in_flight - 1 for step in generation.steps)
    report["accepted"] += sum(step.accepted - 1 for step in generation.steps)
    emitted = sum(step.accepted for step in generation.steps) + 1
    right = (
        list(generation.token_ids) == item["expected"]
        and generation.finish_reason == item["finish_reason"]
        and emitted == len(generation.token_ids)
    )
    if not right:
        report["wrong"].append([generation.request_id, generation.finish_reason, list(generation.token_ids)])


if __name__ == "__main__":
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))), flush=True)
