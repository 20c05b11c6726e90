"""Token recycling: each token's likeliest successors, as the target last ranked them, fill a tree.

Source: Luo et al. 2024, "Turning Trash into Treasure", arXiv 2408.08696, section 3.
Parameters: nodes of the tree and its depth, and whether its shape is fixed, as in the paper, or follows
the acceptance seen in the request; the prompt's token pairs stand in for rankings until the target has
ranked a token's successors itself.
State per request: at most 8 successors for each of the last 8192 distinct tokens, and, with an adaptive
tree, 9 counters per level.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import log
from typing import ClassVar

from lookahead_bench.errors import ConfigError, check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder

SUCCESSORS = 8
"""Successors kept per token, as in the paper."""

TOKENS = 8192
"""Most tokens whose successors are kept; beyond, the one longest without a new ranking goes."""

TREES = ("static", "adaptive")

PRIOR_WEIGHT = 8.0
"""Observations that the assumed acceptance counts for, on each level."""

MEMORY = 0.99
"""Weight of an observation relative to the next on its level."""


class Successors:
    """The matrix: per token its successors, best first.

    Args:
        prompt_ids: its token pairs stand in for rankings, the latest pair first.
    """

    __slots__ = ("_ranked",)

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ranked: dict[int, tuple[int, ...]] = {}
        for token, successor in zip(prompt_ids, prompt_ids[1:]):
            others = tuple(other for other in self.of(token) if other != successor)
            self._rank(token, (successor, *others)[:SUCCESSORS])

    def of(self, token: int) -> tuple[int, ...]:
        """At most SUCCESSORS tokens that follow ``token``; none if it is not known."""
        return self._ranked.get(token, ())

    def learn(self, step: Step) -> None:
        """Take over the target's rankings at the nodes of a pass."""
        for token, ranked in zip(step.tree.tokens, step.top_k or ()):
            if ranked:
                self._rank(token, tuple(ranked))

    def _rank(self, token: int, successors: tuple[int, ...]) -> None:
        self._ranked.pop(token, None)
        if len(self._ranked) >= TOKENS:
            del self._ranked[next(iter(self._ranked))]
        self._ranked[token] = successors


def static_tree(nodes: int, depth: int) -> tuple[tuple[int, int], ...]:
    """The shape of the draft: per node its parent (0 is the root) and its rank among the successors.

    The first child's acceptance is taken as about 1/2 and that of rank r as falling with (r + 1)^-2;
    the tree has the ``nodes`` paths of at most ``depth`` that are likeliest so, best first.
    """
    shape: list[tuple[int, int]] = []
    heap = [(log(2), 0, 0, 1)]
    while heap and len(shape) < nodes:
        cost, parent, rank, level = heappop(heap)
        shape.append((parent, rank))
        if level < depth:
            heappush(heap, (cost + log(2), len(shape), 0, level + 1))
        if rank + 1 < SUCCESSORS:
            heappush(heap, (cost + 2 * log((rank + 2) / (rank + 1)), parent, rank + 1, level))
    return tuple(shape)


class RankAcceptance:
    """How often the successor of each rank was right, by level of the tree, in this request.

    Counts are shrunk to what the static tree assumes, 1/2 (r + 1)^-2 for rank r, and old ones fade.

    Args:
        depth: levels.
    """

    __slots__ = ("_right", "_seen")

    def __init__(self, depth: int) -> None:
        self._right = [[PRIOR_WEIGHT / (2 * (rank + 1) ** 2) for rank in range(SUCCESSORS)] for _ in range(depth)]
        self._seen = [PRIOR_WEIGHT] * depth

    def of(self, level: int, rank: int) -> float:
        """Estimated probability that rank ``rank`` on level ``level`` (from 0) is right where its parent is."""
        return self._right[level][rank] / self._seen[level]

    def observe(self, level: int, rank: int | None) -> None:
        """Learn which rank was right; None: none of them."""
        self._right[level] = [MEMORY * right for right in self._right[level]]
        self._seen[level] = MEMORY * self._seen[level] + 1
        if rank is not None:
            self._right[level][rank] += 1


@strategy("token_recycling")
class TokenRecycling:
    """A tree filled from a matrix of successors.

    Args:
        nodes: drafted tokens of a step, 1 to 512.
        depth: longest path, 1 to 32.
        tree: ``static`` (the paper's: one shape for all steps) or ``adaptive`` (the likeliest nodes by
            the acceptance of each rank and level in this request so far).

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = SUCCESSORS

    def __init__(self, nodes: int = 16, depth: int = 6, tree: str = "static") -> None:
        self.max_drafts = check_int("strategy.nodes", nodes, 1, 512)
        self._depth = check_int("strategy.depth", depth, 1, 32)
        if tree not in TREES:
            raise ConfigError("strategy.tree", tree, " or ".join(TREES))
        self._adaptive = tree == "adaptive"
        self._shape = () if self._adaptive else static_tree(nodes, depth)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._successors = Successors(prompt_ids)
        self._last = prompt_ids[-1]
        self._acceptance = RankAcceptance(self._depth) if self._adaptive else None

    def draft(self, budget: int) -> TokenTree:
        if self._acceptance is not None:
            return self._likeliest(min(budget, self.max_drafts), self._acceptance)
        builder = TreeBuilder(self._last, budget)
        tokens, nodes = [self._last], [0]
        for parent, rank in self._shape:
            node, successors = -1, ()
            if nodes[parent] >= 0:
                successors = self._successors.of(tokens[parent])
            token = successors[rank] if rank < len(successors) else -1
            if token >= 0:
                node = builder.add(nodes[parent], token)
            tokens.append(token)
            nodes.append(node)
        return builder.build()

    def _likeliest(self, budget: int, acceptance: RankAcceptance) -> TokenTree:
        """The ``budget`` nodes that are likeliest by the product of estimates along their paths."""
        builder = TreeBuilder(self._last, budget)
        # (-probability, order of discovery, parent node, token, level): ties go to the earlier one.
        heap: list[tuple[float, int, int, int, int]] = []
        node, token, level, probability, found = 0, self._last, 0, 1.0, 0
        while builder.room > 0:
            if level < self._depth:
                for rank, successor in enumerate(self._successors.of(token)):
                    found += 1
                    likely = probability * acceptance.of(level, rank)
                    heappush(heap, (-likely, found, node, successor, level + 1))
            if not heap:
                break
            negative, _, parent, token, level = heappop(heap)
            probability, node = -negative, builder.add(parent, token)
        return builder.build()

    def observe(self, step: Step) -> None:
        if self._acceptance is not None:
            # Held against the rankings that the draft was made of: before this pass's are learnt.
            last = self._last
            for level, token in enumerate(step.emitted[: self._depth]):
                successors = self._successors.of(last)
                if successors:
                    self._acceptance.observe(level, successors.index(token) if token in successors else None)
                last = token
        self._successors.learn(step)
        self._last = step.emitted[-1]
