"""Drafts of a wanted size that are never accepted: what a step with T tokens in flight costs, and nothing else.

A request goes round all sizes, in an order drawn anew each round, so that slow drift of the machine and
the growing context meet all sizes alike and every size stands beside a plain step of the same round.
State per request: two numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lookahead_bench.errors import ConfigError, check_int
from lookahead_bench.strategy import Step
from lookahead_bench.tree import TokenTree, TreeBuilder

DEFAULT_SIZES = (1, 2, 4, 8, 12, 14, 16, 20, 24, 28, 32, 48, 64)
SHAPES = ("chain", "binary", "wide")


def size_of_step(sizes: Sequence[int], seed: int, step: int) -> int:
    """Tokens in flight of a request's decoding step, counted from 0."""
    number, place = divmod(step, len(sizes))
    return random.Random(f"{seed} {number}").sample(sizes, len(sizes))[place]


class Filler:
    """Drafts tokens that verification may not enter; their logits are computed.

    Args:
        in_flight: sizes of the tree, root included, 1 to 513; 1 must be among them.
        shape: ``chain``, ``binary`` (every node has two children) or ``wide`` (all below the root).
        top_k: how many of the target's likeliest tokens are read at every node, 0 to 64.
        seed: of the order of the sizes.

    Raises:
        ConfigError: a parameter is out of range.
    """

    def __init__(
        self, in_flight: Sequence[int] = DEFAULT_SIZES, shape: str = "binary", top_k: int = 0, seed: int = 0
    ) -> None:
        if isinstance(in_flight, (str, bytes)) or not isinstance(in_flight, Sequence) or 1 not in in_flight:
            raise ConfigError("strategy.in_flight", in_flight, "a list of sizes with 1 among them, such as [1,4,16]")
        self._sizes = tuple(check_int("strategy.in_flight", size, 1, 513) for size in in_flight)
        if len(set(self._sizes)) < len(self._sizes):
            raise ConfigError("strategy.in_flight", list(in_flight), "a list that has every size once")
        if shape not in SHAPES:
            raise ConfigError("strategy.shape", shape, ", ".join(SHAPES))
        self._shape = shape
        self.wants_top_k = check_int("strategy.top_k", top_k, 0, 64)
        self._seed = check_int("strategy.seed", seed, 0, 2**63 - 1)
        self.max_drafts = max(self._sizes) - 1

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._last = prompt_ids[-1]
        self._step = -1

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._last, budget)
        for node in range(1, size_of_step(self._sizes, self._seed, self._step)):
            parent = {"chain": node - 1, "binary": (node - 1) // 2, "wide": 0}[self._shape]
            # Siblings that hold the same token are one node, so every node has a token of its own.
            builder.add(parent, node, may_accept=False)
        return builder.build()

    def observe(self, step: Step) -> None:
        self._last = step.emitted[-1]
        self._step += 1
