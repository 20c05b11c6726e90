"""What a step of each method costs on the host, at a context of 2,000 tokens of real text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lookahead_bench.simulate import target_step
from lookahead_bench.strategy import Step, make_strategy, strategies
from lookahead_bench.tree import TokenTree

CONTEXT = 2000
NEW_TOKENS = 256
VOCABULARY = 49_152
MORE = {
    "lookahead": [{"window": 5, "ngram": 5, "branches": 5}, {"window": 15, "ngram": 5, "branches": 15}],
    "prompt_lookup": [{"branches": 8, "length": 8}],
    "suffix": [{"max_drafts": 64, "spec_factor": 16}],
    "token_recycling": [{"tree": "adaptive"}, {"nodes": 60}],
}
METHODS = [(name, parameters) for name in strategies() for parameters in ({}, *MORE.get(name, ()))]
each_method = pytest.mark.parametrize(
    ("name", "parameters"),
    METHODS,
    ids=[" ".join([name, *(f"{key}={value}" for key, value in own.items())]) for name, own in METHODS],
)


def recorded(name: str, parameters: dict[str, object], text: list[int]) -> list[Step]:
    """The steps in which the method decodes ``text`` from CONTEXT on, the prefill's first.

    The target's choice after a node is the text's token at the node's position, wrong branches included.
    """
    method = make_strategy(name, **parameters)
    method.begin(text[:CONTEXT])
    steps, done = [], CONTEXT
    tree = TokenTree.root(text[done - 1])
    while done < CONTEXT + NEW_TOKENS:
        step = target_step(lambda context: text[len(context)], text[:done], tree, VOCABULARY, method.wants_top_k)
        method.observe(step)
        done += len(step.emitted)
        steps.append(step)
        tree = method.draft(method.max_drafts)
    return steps


def replay(name: str, parameters: dict[str, object], text: list[int], steps: list[Step]) -> Callable[[], tuple]:
    """Makes the arguments of one step after the other; where they are used up, of the first again."""
    left: list[Step] = []
    method = None

    def following() -> tuple:
        nonlocal left, method
        if not left:
            method = make_strategy(name, **parameters)
            method.begin(text[:CONTEXT])
            method.observe(steps[0])
            left = steps[:0:-1]
        return (method, left.pop()), {}

    return following


def one_step(method, step: Step) -> None:
    method.draft(method.max_drafts)
    method.observe(step)


@each_method
def bench_draft_and_observe(benchmark, name, parameters, text):
    """One draft and one observation, each round the next step of the same text."""
    steps = recorded(name, parameters, text)
    benchmark.group = "draft and observe, one step"
    benchmark.extra_info |= {"context": CONTEXT, "steps": len(steps) - 1, "nodes": sum(len(s.tree) for s in steps[1:]) / (len(steps) - 1)}
    benchmark.pedantic(one_step, setup=replay(name, parameters, text, steps), rounds=3 * (len(steps) - 1))


@each_method
def bench_begin(benchmark, name, parameters, text):
    """What the prompt costs once per request."""
    benchmark.group = "begin, once per request"
    benchmark.extra_info["context"] = CONTEXT
    prompt = tuple(text[:CONTEXT])
    benchmark.pedantic(lambda method: method.begin(prompt), setup=lambda: ((make_strategy(name, **parameters),), {}), rounds=20)
