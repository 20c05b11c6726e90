"""Jacobi decoding: guess the next W tokens at once and iterate on them until they stop changing.

Source: Santilli et al. 2023, "Accelerating Transformer Inference for Translation via Parallel
Decoding", arXiv 2305.10427, section 3.2; it is lookahead decoding with N=2 and no pool.
Parameters: window (W guessed tokens), seed of the first guesses, which are drawn from the prompt.
State per request: the prompt and W tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.errors import check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder
from lookahead_bench.verify import NO_CHOICE


@strategy("jacobi")
class Jacobi:
    """A chain of guesses; each pass replaces every guess by the target's choice before it.

    Args:
        window: W, guessed tokens, 1 to 512.
        seed: of the first guesses.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(self, window: int = 5, seed: int = 0) -> None:
        self.max_drafts = check_int("strategy.window", window, 1, 512)
        self._random = random.Random(check_int("strategy.seed", seed, 0, 2**63 - 1))

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._prompt = tuple(prompt_ids)
        self._last = prompt_ids[-1]
        self._guesses = [self._random.choice(self._prompt) for _ in range(self.max_drafts)]

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._last, budget)
        builder.add_chain(0, self._guesses)
        return builder.build()

    def observe(self, step: Step) -> None:
        emitted, verified = len(step.emitted), len(step.choices)
        guesses = []
        # The choice after a node is the new guess one place further on; where none was made the old
        # guess for that place stays. Node 0 is place 0, and place ``emitted`` is the next root.
        for place in range(emitted + 1, emitted + 1 + self.max_drafts):
            new = step.choices[place - 1] if place <= verified else NO_CHOICE
            if new == NO_CHOICE and place <= len(self._guesses):
                new = self._guesses[place - 1]
            guesses.append(self._random.choice(self._prompt) if new == NO_CHOICE else new)
        self._guesses = guesses
        self._last = step.emitted[-1]
