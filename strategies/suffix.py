"""Suffix decoding: the likeliest continuations of the text's longest repeated end, counted in the text.

Source: Oliaro et al. 2024, "SuffixDecoding", arXiv 2411.04975, section 4; a suffix automaton (Blumer
et al. 1985) stands for its suffix tree. Parameters: max_drafts, spec_factor, min_score, min_match, shared_pool.
The draft has at most spec_factor nodes per token of the match: a longer match is trusted more.
State per request: at most two automaton states per token of prompt and output. With shared_pool the outputs of
earlier requests are searched as well; output_pool.py bounds what is kept of them. Nothing is shared without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import ClassVar

from lookahead_bench.errors import ConfigError, check_bool, check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder
from strategies.output_pool import SEPARATOR, OutputPool, Reader
from strategies.suffix_automaton import SuffixAutomaton


@strategy("suffix")
class Suffix:
    """A tree of the most frequent continuations, the likeliest node first.

    A node's score is the share of the match's occurrences that went on along the node's path. Nodes
    are added in the order of their scores, first below the longest match, then, where room is left,
    below shorter ones. Of matches of one length that in the text itself comes first, then those in younger outputs.

    Args:
        max_drafts: most drafted tokens of a step, 1 to 512.
        spec_factor: most drafted tokens per token of the match, 1 to 64.
        min_score: smallest score that is drafted, 0 to 1.
        min_match: shortest suffix that is drafted from, 1 to 16.
        shared_pool: search the outputs of earlier requests too, where the engine keeps a pool of them.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(
        self,
        max_drafts: int = 16,
        spec_factor: int = 3,
        min_score: float = 0.2,
        min_match: int = 1,
        shared_pool: bool = False,
    ) -> None:
        self.max_drafts = check_int("strategy.max_drafts", max_drafts, 1, 512)
        self._spec_factor = check_int("strategy.spec_factor", spec_factor, 1, 64)
        number = isinstance(min_score, (int, float)) and not isinstance(min_score, bool)
        if not number or not 0 <= min_score <= 1:
            raise ConfigError("strategy.min_score", min_score, "a number from 0 to 1")
        self._min_score = min_score
        self._min_match = check_int("strategy.min_match", min_match, 1, 16)
        self.shared_pool = check_bool("strategy.shared_pool", shared_pool)
        self._pool: OutputPool | None = None

    def make_pool(self) -> OutputPool:
        """An empty pool for `share`."""
        return OutputPool()

    def share(self, pool: OutputPool) -> None:
        """Draft from ``pool`` as well; called before `begin`."""
        self._pool = pool

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._automaton = SuffixAutomaton()
        self._readers: list[Reader] = []
        self._extend(prompt_ids)

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._automaton.append(token)
        if self._pool is not None:
            # A generation that has begun since is read from here on, one that has gone no longer.
            known = {id(reader.automaton): reader for reader in self._readers}
            generations = self._pool.generations
            self._readers = [known.get(id(automaton)) or Reader(automaton) for automaton in generations]
            for reader in self._readers:
                reader.follow(tokens)
        self._last = tokens[-1]

    def draft(self, budget: int) -> TokenTree:
        for reader in self._readers:
            reader.settle()
        own = self._automaton
        # Of the match's occurrences, the text's own end is followed by nothing yet.
        matches = [(own.matched, own, own.match, 1)]
        matches += [(reader.matched, reader.automaton, reader.match, 0) for reader in self._readers]
        longest = max(matched for matched, *_ in matches)
        builder = TreeBuilder(self._last, min(budget, self.max_drafts, self._spec_factor * longest))
        while builder.room > 0:
            place = max(range(len(matches)), key=lambda i: matches[i][0])
            matched, text, match, ends = matches[place]
            if matched < self._min_match:
                break
            self._grow(builder, text, match, text.count[match] - ends)
            shorter = text.link[match]
            matches[place] = (text.length[shorter], text, shorter, ends)
        return builder.build()

    def _grow(self, builder: TreeBuilder, text: SuffixAutomaton, match: int, total: int) -> None:
        """Add the continuations of state ``match`` of ``text``, best first, until the room is used up.

        ``total``: how many occurrences of the match could have gone on.
        """
        # (-score, order of discovery, parent node, token, state): ties go to the earlier one.
        heap: list[tuple[float, int, int, int, int]] = []
        node, state, score, found = 0, match, 1.0, 0
        while True:
            for token, following in text.following[state].items():
                share = score * min(1.0, text.count[following] / total) if total else 0.0
                if share >= self._min_score and share > 0 and token != SEPARATOR:
                    found += 1
                    heappush(heap, (-share, found, node, token, following))
            if not heap or builder.room <= 0:
                return
            negative, _, parent, token, state = heappop(heap)
            score, total = -negative, text.count[state]
            node = builder.add(parent, token)

    def observe(self, step: Step) -> None:
        self._extend(step.emitted)
