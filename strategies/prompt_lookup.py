"""Prompt lookup: what followed the last tokens when they stood in the text before.

Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; here with several branches.
Parameters: the suffix that is looked for has max_match down to min_match tokens, the longest first;
its latest occurrences give up to ``branches`` continuations of ``length`` tokens each.
State per request: the text, and for each of its tokens one index entry per suffix length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.errors import check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder


@strategy("prompt_lookup")
class PromptLookup:
    """Continuations of earlier occurrences of the text's end, in prompt and output, as a trie.

    Args:
        min_match: shortest suffix that is looked up, 1 to ``max_match``.
        max_match: longest suffix that is looked up, 1 to 16.
        branches: most continuations, 1 to 64; equal ones count once.
        length: tokens of a continuation, 1 to 64.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(
        self, min_match: int = 1, max_match: int = 4, branches: int = 2, length: int = 4
    ) -> None:
        self._max_match = check_int("strategy.max_match", max_match, 1, 16)
        self._min_match = check_int("strategy.min_match", min_match, 1, max_match)
        self._branches = check_int("strategy.branches", branches, 1, 64)
        self._length = check_int("strategy.length", length, 1, 64)
        self.max_drafts = branches * length

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._text: list[int] = []
        # Where the text goes on after a suffix, the latest last.
        self._after: dict[tuple[int, ...], deque[int]] = {}
        self._extend(prompt_ids)

    def _extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens`` and index what each of them follows."""
        for token in tokens:
            end = len(self._text)
            for match in range(self._min_match, min(self._max_match, end) + 1):
                suffix = tuple(self._text[end - match :])
                self._after.setdefault(suffix, deque(maxlen=self._branches)).append(end)
            self._text.append(token)

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._text[-1], budget)
        branches = 0
        for match in range(min(self._max_match, len(self._text)), self._min_match - 1, -1):
            for start in reversed(self._after.get(tuple(self._text[-match:]), ())):
                room = builder.room
                builder.add_chain(0, self._continuation(start))
                branches += builder.room < room
                if branches == self._branches:
                    return builder.build()
        return builder.build()

    def _continuation(self, start: int) -> list[int]:
        """``length`` tokens from ``start`` on; past the end of the text, the period goes on."""
        tokens = self._text[start : start + self._length]
        while len(tokens) < self._length:
            tokens.append(tokens[len(tokens) - (len(self._text) - start)])
        return tokens

    def observe(self, step: Step) -> None:
        self._extend(step.emitted)
