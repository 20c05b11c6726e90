"""Plain decoding through the plug-in: every tree is empty. Shows what the plug-in itself costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree


@strategy("autoregressive")
class Autoregressive:
    """Drafts nothing. State per request: one token."""

    wants_top_k: ClassVar[int] = 0
    max_drafts = 0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._last = prompt_ids[-1]

    def draft(self, budget: int) -> TokenTree:
        return TokenTree.root(self._last)

    def observe(self, step: Step) -> None:
        self._last = step.emitted[-1]
