"""Suffix decoding: the likeliest continuations of the text's longest repeated end, counted in the text.

Source: Oliaro et al. 2024, "SuffixDecoding", arXiv 2411.04975, section 4; a suffix automaton (Blumer
et al. 1985) stands for its suffix tree. Parameters: max_drafts, spec_factor, min_score, min_match.
The draft has at most spec_factor nodes per token of the match: a longer match is trusted more.
State per request: at most two automaton states per token of prompt and output.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import ClassVar

from lookahead_bench.errors import ConfigError, check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder
from strategies.suffix_automaton import SuffixAutomaton


@strategy("suffix")
class Suffix:
    """A tree of the most frequent continuations, the likeliest node first.

    A node's score is the share of the match's occurrences that went on along the node's path. Nodes
    are added in the order of their scores, first below the longest match, then, where room is left,
    below its shorter suffixes.

    Args:
        max_drafts: most drafted tokens of a step, 1 to 512.
        spec_factor: most drafted tokens per token of the match, 1 to 64.
        min_score: smallest score that is drafted, 0 to 1.
        min_match: shortest suffix that is drafted from, 1 to 16.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(
        self, max_drafts: int = 16, spec_factor: int = 3, min_score: float = 0.2, min_match: int = 1
    ) -> None:
        self.max_drafts = check_int("strategy.max_drafts", max_drafts, 1, 512)
        self._spec_factor = check_int("strategy.spec_factor", spec_factor, 1, 64)
        number = isinstance(min_score, (int, float)) and not isinstance(min_score, bool)
        if not number or not 0 <= min_score <= 1:
            raise ConfigError("strategy.min_score", min_score, "a number from 0 to 1")
        self._min_score = min_score
        self._min_match = check_int("strategy.min_match", min_match, 1, 16)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._automaton = SuffixAutomaton()
        self._extend(prompt_ids)

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._automaton.append(token)
        self._last = tokens[-1]

    def draft(self, budget: int) -> TokenTree:
        text = self._automaton
        builder = TreeBuilder(self._last, min(budget, self.max_drafts, self._spec_factor * text.matched))
        match, matched = text.match, text.matched
        while builder.room > 0 and matched >= self._min_match:
            self._grow(builder, match)
            match = text.link[match]
            matched = text.length[match]
        return builder.build()

    def _grow(self, builder: TreeBuilder, match: int) -> None:
        """Add the continuations of state ``match``, best first, until the room is used up."""
        text = self._automaton
        # (-score, order of discovery, parent node, token, state): ties go to the earlier one.
        heap: list[tuple[float, int, int, int, int]] = []
        node, state, score, found = 0, match, 1.0, 0
        # Of the match's occurrences, the text's own end is followed by nothing yet.
        total = text.count[match] - 1
        while True:
            for token, following in text.following[state].items():
                share = score * min(1.0, text.count[following] / total) if total else 0.0
                if share >= self._min_score and share > 0:
                    found += 1
                    heappush(heap, (-share, found, node, token, following))
            if not heap or builder.room <= 0:
                return
            negative, _, parent, token, state = heappop(heap)
            score, total = -negative, text.count[state]
            node = builder.add(parent, token)

    def observe(self, step: Step) -> None:
        self._extend(step.emitted)
