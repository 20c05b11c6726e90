"""Run as a process of its own: a stock engine's outputs, steps and counts, beside vLLM's own counters after every step.

Reads ``{"spec": EngineSpec's fields, "prompts": [token ids], "max_new_tokens": n}`` from stdin and prints one JSON
list with an object per prompt: ``token_ids``, ``finish_reason``, ``in_flight`` and ``accepted`` per decoding step,
and ``counted``: [drafts, drafted, accepted] as vLLM has counted them in each of these steps.
"""

from __future__ import annotations

import json
import os
import sys

from lookahead_bench.engine.session import Session
from lookahead_bench.records import EngineSpec, Request

COUNTERS = [f"vllm:spec_decode_num_{what}" for what in ("drafts", "draft_tokens", "accepted_tokens")]


def counters(session: Session) -> list[int]:
    values = {metric.name: metric.value for metric in session._engine.get_metrics() if metric.name in COUNTERS}
    return [int(values.get(name, 0)) for name in COUNTERS]


def run(session: Session, name: str, prompt: list[int], max_new_tokens: int) -> dict[str, object]:
    assert session.add(Request(name, tuple(prompt), max_new_tokens, ignore_eos=True)) is None
    before, counted, generation = counters(session), [], None
    while generation is None:
        chunks = session.step()
        after = counters(session)
        if chunks:
            counted.append([new - old for new, old in zip(after, before)])
            generation = chunks[0].generation
        before = after
    return {
        "token_ids": list(generation.token_ids),
        "finish_reason": generation.finish_reason,
        "in_flight": [step.in_flight for step in generation.steps],
        "accepted": [step.accepted for step in generation.steps],
        "counted": counted[1:],  # the first step is the prefill
    }


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    session = Session(EngineSpec(**asked["spec"]))
    answers = [run(session, str(n), prompt, asked["max_new_tokens"]) for n, prompt in enumerate(asked["prompts"])]
    print(json.dumps(answers), flush=True)
    # vLLM's threads and atexit hooks have nothing left to save, and may hang.
    os._exit(0)
