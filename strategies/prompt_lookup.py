"""Prompt lookup: what followed the last tokens when they stood in the text before.

Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; here with several branches.
Parameters: the suffix that is looked for has max_match down to min_match tokens, the longest first;
its latest occurrences give up to ``branches`` continuations of ``length`` tokens each.
State per request: the text, and for each of its tokens at most two index entries per suffix length.
"""

from __future__ import annotations

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
        # Where the text went on after a suffix, the last time; and, by length of the suffix and that place, where
        # it did so the time before. 0: never.
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[list[int]] = [[] for _ in range(self._min_match, self._max_match + 1)]
        self._extend(prompt_ids)

    def _extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens`` and index what each of them follows."""
        text, latest = self._text, self._latest
        known = len(text)
        text += tokens
        for match, earlier in enumerate(self._earlier, self._min_match):
            first = max(known, match)
            # The text's start is no end of so long a suffix.
            earlier += [0] * (min(first, len(text)) - known)
            suffixes = zip(*(text[first - match + place : len(text) - match + place] for place in range(match)))
            for end, suffix in enumerate(suffixes, first):
                earlier.append(latest.get(suffix, 0))
                latest[suffix] = end

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._text[-1], budget)
        branches = 0
        for match in range(min(self._max_match, len(self._text)), self._min_match - 1, -1):
            start = self._latest.get(tuple(self._text[-match:]), 0)
            for _ in range(self._branches):
                if not start:
                    break
                room = builder.room
                builder.add_chain(0, self._continuation(start))
                branches += builder.room < room
                if branches == self._branches:
                    return builder.build()
                start = self._earlier[match - self._min_match][start]
        return builder.build()

    def _continuation(self, start: int) -> list[int]:
        """``length`` tokens from ``start`` on; past the end of the text, the period goes on."""
        tokens = self._text[start : start + self._length]
        while len(tokens) < self._length:
            tokens.append(tokens[len(tokens) - (len(self._text) - start)])
        return tokens

    def observe(self, step: Step) -> None:
        self._extend(step.emitted)
