"""Token recycling: each token's likeliest successors, as the target last ranked them, fill a fixed tree.

Source: Luo et al. 2024, "Turning Trash into Treasure", arXiv 2408.08696, section 3.
Parameters: nodes of the tree and its depth; the prompt's token pairs stand in for rankings until
the target has ranked a token's successors itself.
State per request: at most 8 successors for each of the last 8192 distinct tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import log
from typing import ClassVar

from lookahead_bench.errors import check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder

SUCCESSORS = 8
"""Successors kept per token, as in the paper."""

TOKENS = 8192
"""Most tokens whose successors are kept; beyond, the one longest without a new ranking goes."""


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


@strategy("token_recycling")
class TokenRecycling:
    """A static tree filled from a matrix of successors.

    Args:
        nodes: drafted tokens of a step, 1 to 512.
        depth: longest path, 1 to 32.

    Raises:
        ConfigError: a parameter is out of range.
    """

    wants_top_k: ClassVar[int] = SUCCESSORS

    def __init__(self, nodes: int = 16, depth: int = 6) -> None:
        self.max_drafts = check_int("strategy.nodes", nodes, 1, 512)
        self._shape = static_tree(nodes, check_int("strategy.depth", depth, 1, 32))

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._successors = Successors(prompt_ids)
        self._last = prompt_ids[-1]

    def draft(self, budget: int) -> TokenTree:
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

    def observe(self, step: Step) -> None:
        self._successors.learn(step)
        self._last = step.emitted[-1]
