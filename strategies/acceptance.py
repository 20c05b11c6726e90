"""How likely a candidate is right: estimates by kind of candidate, learnt within the request.

That a draft's size follows from estimates of acceptance is the argument of Chen et al. 2024, "Sequoia"
(arXiv 2402.12374).
State per request: one counter for each of at most 619 kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MATCHES = (1, 2, 3, 4, 6, 10)
"""Shortest match of each class of match lengths."""

SHARES = 5
"""Classes of a continuation's share of its match's occurrences: all, half, a third, a fourth, less."""

MATCH_PRIOR = (0.25, 0.4, 0.5, 0.65, 0.75, 0.9)
RANK_PRIOR = (0.1, 0.08, 0.05, 0.03)
GUESS_PRIOR = (0.22, 0.1, 0.06)
"""Share of candidates that are right, before this request has shown any of its own.

By class of match length and by rank among successors, rounded from 10 HumanEval and 20 MT-Bench answers; by
class of guess, from 40 and 51. All of 128 tokens, by a model of 135 M parameters.
"""

PRIOR_WEIGHT = 8.0
"""Observations that the prior counts for."""

MEMORY = 0.99
"""Weight of an observation relative to the next of its kind."""

NONE = -1


class Kind(NamedTuple):
    """What a candidate is known by; NONE where a source is silent.

    Attributes:
        match: class of the match's length.
        share: class of the continuation's share of the match's occurrences.
        rank: among the successors of the token before.
        guess: 0: the first guess of the last pass, where no other source speaks; 1: the first guess
            elsewhere; 2: a later one.
    """

    match: int = NONE
    share: int = NONE
    rank: int = NONE
    guess: int = NONE


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
        self._right = self._expected = PRIOR_WEIGHT

    def of(self, kind: Kind) -> float:
        """Estimated probability that a candidate of this kind is right where its parent is."""
        right, seen = self._seen.get(kind, (0.0, 0.0))
        prior = _prior(kind) * self._right / self._expected
        return min(1.0, (right + PRIOR_WEIGHT * prior) / (seen + PRIOR_WEIGHT))

    def observe(self, candidates: Sequence[Candidate], token: int) -> None:
        """Learn which of the candidates was right: the one of ``token``, if any."""
        for candidate in candidates:
            right, seen = self._seen.get(candidate.kind, (0.0, 0.0))
            hit = candidate.token == token
            self._seen[candidate.kind] = (MEMORY * right + hit, MEMORY * seen + 1)
            self._right = MEMORY * self._right + hit
            self._expected = MEMORY * self._expected + _prior(candidate.kind)


@lru_cache(maxsize=None)
def _prior(kind: Kind) -> float:
    """That of a candidate of which each source that names it is right independently of the others."""
    wrong = 1.0
    if kind.match != NONE:
        wrong *= 1 - MATCH_PRIOR[kind.match] / (1 + kind.share)
    if kind.rank != NONE:
        wrong *= 1 - RANK_PRIOR[kind.rank]
    if kind.guess != NONE:
        wrong *= 1 - GUESS_PRIOR[kind.guess]
    return 1 - wrong
