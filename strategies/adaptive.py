"""Adaptive drafting: the tree with the most expected tokens for its cost, from three sources at once.

Sources: suffix matches as in Oliaro et al. 2024 (arXiv 2411.04975), successors as in Luo et al. 2024
(arXiv 2408.08696), and the choices after rejected nodes as in Jacobi and lookahead decoding
(``trajectory.py``). That the size of a draft follows from acceptance estimates and the cost of a pass is
the argument of Chen et al. 2024, "Sequoia" (arXiv 2402.12374). Parameters: cost, max_drafts.
Every emitted token is held against what would have been drafted before it, whether or not it was: so
estimates follow the text while nothing is drafted.
State per request: at most two automaton states per token of prompt and output, 8 successors for each of
the last 8192 distinct tokens, the last pass's tree, and one counter for each of at most 619 kinds of
candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, nlargest
from typing import ClassVar

from lookahead_bench.errors import check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder
from strategies.acceptance import MATCHES, NONE, RANK_PRIOR, SHARES, Acceptance, Candidate, Kind
from strategies.cost_curve import DEFAULT_COST, check_cost, shared_curve
from strategies.suffix_automaton import SuffixAutomaton
from strategies.token_recycling import Successors
from strategies.trajectory import Nodes, Trajectory

_CONTINUATIONS = 4
"""Most frequent continuations of the longest match that are candidates."""

_RANKS = len(RANK_PRIOR)
"""Best successors that are candidates."""

_GUESSES = 3
"""Guesses of the last pass that are candidates."""


@strategy("adaptive")
class Adaptive:
    """Chooses per step how many nodes to draft, and which.

    Nodes are taken in the order of their probability of acceptance, the product of estimates along
    their path; of all sizes, that with the most expected tokens per cost is drafted, which may be none.

    Args:
        cost: pairs of nodes in flight, root included, and the cost of such a step; the first is for 1
            node, both grow. Only ratios matter. ``auto``, None and ``default`` stand for DEFAULT_COST:
            a measured curve in place of ``auto`` is found before a method is made (``cost/choose.py``).
        max_drafts: most drafted tokens of a step, 1 to 512.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = _RANKS
    DEFAULT_COST: ClassVar[list[list[float]]] = DEFAULT_COST

    def __init__(self, cost: str | None | Sequence[Sequence[float]] = "auto", max_drafts: int = 32) -> None:
        self.max_drafts = check_int("strategy.max_drafts", max_drafts, 1, 512)
        cost = DEFAULT_COST if cost in (None, "auto", "default") else cost
        self._curve = shared_curve(check_cost(cost), max_drafts + 1)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._text = SuffixAutomaton()
        for token in prompt_ids:
            self._text.append(token)
        self._last = prompt_ids[-1]
        self._successors = Successors(prompt_ids)
        self._acceptance = Acceptance()
        self._trajectory = Trajectory()

    def _candidates(self, state: int, matched: int, last: int, guessing: Nodes) -> list[Candidate]:
        """What may follow ``last``, the end of a match of ``matched`` tokens at ``state``."""
        ranks = {successor: rank for rank, successor in enumerate(self._successors.of(last)[:_RANKS])}
        guesses = self._trajectory.guesses(guessing)[:_GUESSES] if guessing else []
        candidates = []
        text = self._text
        while state and not text.following[state]:
            # The match has reached the end of the text; in a loop, a shorter one goes on.
            state = text.link[state]
            matched = text.length[state]
        alone = not matched and not ranks
        guessed = {token: 2 if place else 0 if alone else 1 for place, token in enumerate(guesses)}
        if matched:
            length = sum(matched >= shortest for shortest in MATCHES) - 1
            following = [(text.count[after], -after, token) for token, after in text.following[state].items()]
            total = sum(count for count, _, _ in following)
            for count, _, token in nlargest(_CONTINUATIONS, following):
                share = min(SHARES - 1, total // count - 1)
                kind = Kind(length, share, ranks.pop(token, NONE), guessed.pop(token, NONE))
                candidates.append(Candidate(token, kind))
        for token, rank in ranks.items():
            candidates.append(Candidate(token, Kind(rank=rank, guess=guessed.pop(token, NONE))))
        return candidates + [Candidate(token, Kind(guess=guess)) for token, guess in guessed.items()]

    def _follow(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """The longest suffix of a match and ``token`` that the text has: its state and length."""
        text = self._text
        while state and token not in text.following[state]:
            state = text.link[state]
            matched = text.length[state]
        after = text.following[state].get(token)
        return (0, 0) if after is None else (after, matched + 1)

    def draft(self, budget: int) -> TokenTree:
        size = min(budget, self.max_drafts)
        curve, estimate = self._curve, self._acceptance.of
        # Nodes in the order taken: parent and token.
        nodes = [(-1, self._last)]
        # (-probability, order of discovery, parent node, token, the parent's match and guesses): the earlier wins ties.
        heap: list[tuple[float, int, int, int, int, int, Nodes]] = []
        expected, best, best_size, found = 1.0, 1.0 / curve.cost[1], 1, 0
        probability, state, matched, guessing = 1.0, self._text.match, self._text.matched, self._trajectory.start
        while True:
            for token, kind in self._candidates(state, matched, nodes[-1][1], guessing):
                found += 1
                likely = probability * estimate(kind)
                heappush(heap, (-likely, found, len(nodes) - 1, token, state, matched, guessing))
            # No further node is likelier than the next: below this, none can pay.
            if not heap or len(nodes) > size or -heap[0][0] <= best * curve.least[len(nodes)]:
                break
            negative, _, parent, token, state, matched, guessing = heappop(heap)
            probability = -negative
            nodes.append((parent, token))
            state, matched = self._follow(state, matched, token)
            guessing = self._trajectory.follow(guessing, token) if guessing else ()
            expected += probability
            if expected / curve.cost[len(nodes)] > best:
                best, best_size = expected / curve.cost[len(nodes)], len(nodes)
        builder = TreeBuilder(self._last, size)
        for parent, token in nodes[1:best_size]:
            builder.add(parent, token)
        return builder.build()

    def observe(self, step: Step) -> None:
        text, guessing = self._text, self._trajectory.start
        for token in step.emitted:
            self._acceptance.observe(self._candidates(text.match, text.matched, self._last, guessing), token)
            guessing = self._trajectory.follow(guessing, token)
            text.append(token)
            self._last = token
        self._successors.learn(step)
        self._trajectory.learn(step)
