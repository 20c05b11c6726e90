"""Adaptive drafting: the tree with the most expected tokens for its cost, from two sources at once.

Sources: suffix matches as in Oliaro et al. 2024 (arXiv 2411.04975) and successors as in Luo et al. 2024
(arXiv 2408.08696). That the size of a draft follows from acceptance estimates and the cost of a pass is
the argument of Chen et al. 2024, "Sequoia" (arXiv 2402.12374). Parameters: cost, max_drafts.
Every emitted token is held against what would have been drafted before it, whether or not it was: so
estimates follow the text while nothing is drafted, and no draft is spent on probing.
State per request: at most two automaton states per token of prompt and output, 8 successors for each of
the last 8192 distinct tokens, and one counter for each of at most 154 kinds of candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush, nlargest
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from lookahead_bench.errors import ConfigError, check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder
from strategies.suffix_automaton import SuffixAutomaton
from strategies.token_recycling import Successors

DEFAULT_COST = [[1, 1.0], [7, 1.1], [14, 1.42], [21, 1.75], [28, 2.1], [34, 2.4]]
"""Nodes in flight and the cost of a step with them, relative to one with the root alone.

As measured for the tree executor with a model of 135 M parameters in float32 on two CPU cores.
"""

_CONTINUATIONS = 4
"""Most frequent continuations of the longest match that are candidates."""

_RANKS = 4
"""Best successors that are candidates."""

_MATCHES = (1, 2, 3, 4, 6, 10)
"""Shortest match of each class of match lengths."""

_MATCH_PRIOR = (0.25, 0.4, 0.5, 0.65, 0.75, 0.9)
_RANK_PRIOR = (0.1, 0.08, 0.05, 0.03)
"""Share of candidates that are right, before this request has shown any of its own.

By class of match length and by rank, rounded from 10 HumanEval and 20 MT-Bench answers of 128 tokens
by a model of 135 M parameters.
"""

_PRIOR_WEIGHT = 8.0
"""Observations that the prior counts for."""

_MEMORY = 0.99
"""Weight of an observation relative to the next of its kind."""

Kind = tuple[int, int, int]
"""Class of the match's length, class of the continuation's share, rank; -1 where that source is silent."""


class Candidate(NamedTuple):
    """A token that may come next, with the kind that its acceptance is estimated by."""

    token: int
    kind: Kind


class Acceptance:
    """How often candidates of each kind were right in this request.

    A kind's own observations are shrunk to a prior, which is scaled by how the request as a whole
    compares with its priors. Old observations fade.
    """

    __slots__ = ("_seen", "_right", "_expected")

    def __init__(self) -> None:
        self._seen: dict[Kind, tuple[float, float]] = {}
        self._right = self._expected = _PRIOR_WEIGHT

    def of(self, kind: Kind) -> float:
        """Estimated probability that a candidate of this kind is right where its parent is."""
        right, seen = self._seen.get(kind, (0.0, 0.0))
        prior = _prior(kind) * self._right / self._expected
        return min(1.0, (right + _PRIOR_WEIGHT * prior) / (seen + _PRIOR_WEIGHT))

    def observe(self, candidates: Sequence[Candidate], token: int) -> None:
        """Learn which of the candidates was right: the one of ``token``, if any."""
        for candidate in candidates:
            right, seen = self._seen.get(candidate.kind, (0.0, 0.0))
            hit = candidate.token == token
            self._seen[candidate.kind] = (_MEMORY * right + hit, _MEMORY * seen + 1)
            self._right = _MEMORY * self._right + hit
            self._expected = _MEMORY * self._expected + _prior(candidate.kind)


@lru_cache(maxsize=None)
def _prior(kind: Kind) -> float:
    match, share, rank = kind
    wrong = 1.0
    if match >= 0:
        wrong *= 1 - _MATCH_PRIOR[match] / (1 + share)
    if rank >= 0:
        wrong *= 1 - _RANK_PRIOR[rank]
    return 1 - wrong


class CostCurve:
    """The cost of a step by its nodes in flight, 1 to ``size``, from a few points.

    Attributes:
        cost: per number of nodes its cost; straight between points, beyond the last as before it.
        least: per number of nodes the least cost of a further one, whatever number is added.
    """

    __slots__ = ("cost", "least")

    def __init__(self, points: Sequence[Sequence[float]], size: int) -> None:
        nodes, costs = np.array(points, dtype=float).T
        at = np.arange(size + 2)
        curve = np.interp(at, nodes, costs)
        if len(nodes) > 1:
            slope = (costs[-1] - costs[-2]) / (nodes[-1] - nodes[-2])
            curve += np.maximum(at - nodes[-1], 0) * slope
        self.cost: list[float] = curve.tolist()
        self.least = [float(((curve[n + 1 :] - curve[n]) / (at[n + 1 :] - n)).min()) for n in range(size + 1)]


@lru_cache(maxsize=64)
def _curve(points: tuple[tuple[float, float], ...], size: int) -> CostCurve:
    return CostCurve(points, size)


@strategy("adaptive")
class Adaptive:
    """Chooses per step how many nodes to draft, and which.

    Nodes are taken in the order of their probability of acceptance, the product of estimates along
    their path; of all sizes, that with the most expected tokens per cost is drafted, which may be none.

    Args:
        cost: pairs of nodes in flight, root included, and the cost of such a step; the first is for 1
            node, both grow. Only ratios matter.
        max_drafts: most drafted tokens of a step, 1 to 512.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = _RANKS

    def __init__(self, cost: Sequence[Sequence[float]] = DEFAULT_COST, max_drafts: int = 32) -> None:
        self.max_drafts = check_int("strategy.max_drafts", max_drafts, 1, 512)
        self._curve = _curve(_check_cost(cost), max_drafts + 1)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._text = SuffixAutomaton()
        for token in prompt_ids:
            self._text.append(token)
        self._last = prompt_ids[-1]
        self._successors = Successors(prompt_ids)
        self._acceptance = Acceptance()

    def _candidates(self, state: int, matched: int, last: int) -> list[Candidate]:
        """What may follow ``last``, the end of a match of ``matched`` tokens at ``state``."""
        ranks = {successor: rank for rank, successor in enumerate(self._successors.of(last)[:_RANKS])}
        candidates = []
        text = self._text
        while state and not text.following[state]:
            # The match has reached the end of the text; in a loop, a shorter one goes on.
            state = text.link[state]
            matched = text.length[state]
        if matched:
            length = sum(matched >= shortest for shortest in _MATCHES) - 1
            following = [(text.count[after], -after, token) for token, after in text.following[state].items()]
            total = sum(count for count, _, _ in following)
            for count, _, token in nlargest(_CONTINUATIONS, following):
                share = min(4, total // count - 1)
                candidates.append(Candidate(token, (length, share, ranks.pop(token, -1))))
        candidates += [Candidate(token, (-1, -1, rank)) for token, rank in ranks.items()]
        return candidates

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
        # (-probability, order of discovery, parent node, token, the parent's match): the earlier wins ties.
        heap: list[tuple[float, int, int, int, int, int]] = []
        expected, best, best_size, found = 1.0, 1.0 / curve.cost[1], 1, 0
        probability, state, matched = 1.0, self._text.match, self._text.matched
        while True:
            for token, kind in self._candidates(state, matched, nodes[-1][1]):
                found += 1
                heappush(heap, (-probability * estimate(kind), found, len(nodes) - 1, token, state, matched))
            # No further node is likelier than the next: below this, none can pay.
            if not heap or len(nodes) > size or -heap[0][0] <= best * curve.least[len(nodes)]:
                break
            negative, _, parent, token, state, matched = heappop(heap)
            probability = -negative
            nodes.append((parent, token))
            state, matched = self._follow(state, matched, token)
            expected += probability
            if expected / curve.cost[len(nodes)] > best:
                best, best_size = expected / curve.cost[len(nodes)], len(nodes)
        builder = TreeBuilder(self._last, size)
        for parent, token in nodes[1:best_size]:
            builder.add(parent, token)
        return builder.build()

    def observe(self, step: Step) -> None:
        text = self._text
        for token in step.emitted:
            self._acceptance.observe(self._candidates(text.match, text.matched, self._last), token)
            text.append(token)
            self._last = token
        self._successors.learn(step)


def _check_cost(cost: object) -> tuple[tuple[float, float], ...]:
    allowed = "pairs such as [[1,1.0],[8,1.25]]: growing nodes from 1 on, with costs above 0 that do not fall"
    try:
        points = tuple((float(nodes), float(value)) for nodes, value in cost)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ConfigError("strategy.cost", cost, allowed) from error
    grows = all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(points))
    if not points or points[0][0] != 1 or not points[0][1] > 0 or not grows or not np.isfinite(points).all():
        raise ConfigError("strategy.cost", cost, allowed)
    return points
