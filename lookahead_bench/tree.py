"""The token tree: the one shape in which every method hands in its draft.

Node 0 is the last accepted token, whose KV is not written yet. Every other node is a drafted
token below a parent with a smaller index, so any prefix of the flat order is a tree again: a
scheduler may cut a draft from its tail and what is left is simply verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A draft in topological order.

    Attributes:
        tokens: token id of each node; ``tokens[0]`` is the last accepted token.
        parents: index of each node's parent; ``parents[0]`` is -1, else ``parents[i] < i``.
        wants_logits: whether the target's choice after the node is read. Always true for node 0.
        may_accept: whether verification may enter the node; where not, it is computed for what it
            tells the strategy alone. Always true for node 0; empty stands for all true.

    Raises:
        ValueError: they differ in length, are empty, or the order is not topological.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    wants_logits: tuple[bool, ...]
    may_accept: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.may_accept:
            object.__setattr__(self, "may_accept", (True,) * len(self.tokens))
        flags = (self.wants_logits, self.may_accept)
        if not self.tokens or any(len(column) != len(self.tokens) for column in (self.parents, *flags)):
            raise ValueError("tokens, parents, wants_logits and may_accept must have one length of at least 1")
        if self.parents[0] != -1 or not all(flag[0] for flag in flags):
            raise ValueError("node 0 must be the root (parent -1), want its logits and be accepted")
        if any(not 0 <= parent < node for node, parent in enumerate(self.parents) if node):
            raise ValueError("every parent must come before its children")

    @classmethod
    def root(cls, token: int) -> TokenTree:
        """The empty draft: the last accepted token alone."""
        return cls((token,), (-1,), (True,))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_drafts(self) -> int:
        """Number of drafted tokens: all nodes but the root."""
        return len(self.tokens) - 1

    @property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root; a node's position is context length + depth."""
        depths = [0] * len(self.tokens)
        for node in range(1, len(depths)):
            depths[node] = depths[self.parents[node]] + 1
        return tuple(depths)

    def prefix(self, size: int) -> TokenTree:
        """The first ``size`` nodes (at least 1), which are a tree again."""
        if size >= len(self.tokens):
            return self
        columns = (self.tokens, self.parents, self.wants_logits, self.may_accept)
        return TokenTree(*(column[:size] for column in columns))

    def mask(self) -> np.ndarray:
        """Who attends to whom among the nodes, bool [n, n]: row i has i itself and its ancestors."""
        mask = np.eye(len(self.tokens), dtype=bool)
        for node in range(1, len(self.tokens)):
            mask[node] |= mask[self.parents[node]]
        return mask

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the first level below the root down to ``node``; empty for the root."""
        path = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in order; the root alone if nothing is drafted."""
        inner = set(self.parents)
        return tuple(node for node in range(len(self.tokens)) if node not in inner)


class TreeBuilder:
    """Grows a TokenTree node by node; siblings with the same token become one node (a trie).

    Args:
        root: the last accepted token.
        budget: how many nodes may be added below the root. Further nodes are dropped silently,
            which is what a scheduler that cuts the tail would do.
    """

    __slots__ = ("_tokens", "_parents", "_wants", "_accept", "_child", "_budget")

    def __init__(self, root: int, budget: int) -> None:
        self._tokens = [root]
        self._parents = [-1]
        self._wants = [True]
        self._accept = [True]
        self._child: dict[tuple[int, int], int] = {}
        self._budget = budget

    @property
    def room(self) -> int:
        """How many nodes can still be added."""
        return self._budget - (len(self._tokens) - 1)

    def add(
        self, parent: int, token: int, *, wants_logits: bool = True, may_accept: bool = True
    ) -> int:
        """Add ``token`` below ``parent``; return its node, or -1 if the budget is used up.

        A ``parent`` of -1 (itself dropped) drops the node too. A shared node wants logits, and may
        be accepted, if one of its users says so.
        """
        if parent < 0:
            return -1
        node = self._child.get((parent, token))
        if node is not None:
            self._wants[node] |= wants_logits
            self._accept[node] |= may_accept
            return node
        if self.room <= 0:
            return -1
        node = len(self._tokens)
        self._tokens.append(token)
        self._parents.append(parent)
        self._wants.append(wants_logits)
        self._accept.append(may_accept)
        self._child[parent, token] = node
        return node

    def add_chain(self, parent: int, tokens: Sequence[int], **flags: bool) -> int:
        """Add ``tokens`` one below the other, each as ``add`` does with ``flags``.

        Returns:
            The last node, ``parent`` if there are no tokens, -1 if it was dropped.
        """
        for token in tokens:
            parent = self.add(parent, token, **flags)
        return parent

    def build(self) -> TokenTree:
        """The tree as it stands."""
        columns = (self._tokens, self._parents, self._wants, self._accept)
        return TokenTree(*(tuple(column) for column in columns))
