"""A drafting method for tests: random trees in which some branches are known to be right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.strategy import Step
from lookahead_bench.tree import TokenTree, TreeBuilder


class Oracle:
    """Grows random trees around a known continuation.

    Args:
        target: the output that plain decoding gives.
        seed: of the trees' shapes.
        luck: probability that a node below a right one is right too.
        size: most nodes of a tree.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(self, target: Sequence[int] = (), seed: int = 0, luck: float = 0.7, size: int = 24) -> None:
        self._target = tuple(target)
        self._random = random.Random(seed)
        self._luck = luck
        self.max_drafts = size

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._emitted = 0
        self._last = prompt_ids[-1]

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._last, min(budget, self._random.randint(0, self.max_drafts)))
        depths, right = {0: 0}, {0}
        for _ in range(4 * self.max_drafts):
            parent = self._random.choice(list(depths))
            position = self._emitted + depths[parent]
            lucky = parent in right and position < len(self._target) and self._random.random() < self._luck
            token = self._target[position] if lucky else self._random.randrange(100, 40_000)
            node = builder.add(parent, token, wants_logits=self._random.random() < 0.9)
            if node > 0:
                depths[node] = depths[parent] + 1
                if lucky:
                    right.add(node)
        return builder.build()

    def observe(self, step: Step) -> None:
        self._emitted += len(step.emitted)
        self._last = step.emitted[-1]
