"""Verification: which drafted tokens the target model itself would have produced.

Lossless for greedy decoding, and for sampling as well: a draft is a fixed set of tokens, so
sampling the target at a node and descending into the child that holds the sample, if there is
one, draws every emitted token from the target's own distribution. (For a draft of point masses
this is the multi-branch rejection rule of Miao et al. 2024, SpecInfer, arXiv 2305.09781, section
4.3: a branch is taken with exactly its target probability.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lookahead_bench.tree import TokenTree

NO_CHOICE = -1
"""Stands where the target's choice was not computed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one pass emits.

    Attributes:
        path: accepted nodes below the root, each the parent of the next; may be empty.
        tokens: emitted tokens: those of ``path``, then the bonus token, the target's own choice
            after the last accepted node. Always one longer than ``path``.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]


def verify(tree: TokenTree, choices: Sequence[int]) -> Verdict:
    """Walk from the root along the target's choices for as long as a child holds the choice.

    Args:
        tree: the draft that was verified.
        choices: per node, the token that the target chose (argmax, or a sample) after it;
            NO_CHOICE where its logits were not computed.

    Returns:
        The accepted path and the emitted tokens. A node whose choice is unknown, or that may not be
        accepted, is not entered: its token still comes out, as the bonus of its parent.

    Raises:
        ValueError: the root's choice is unknown, or the lengths differ.
    """
    if len(choices) != len(tree):
        raise ValueError(f"{len(choices)} choices for {len(tree)} nodes")
    if choices[0] == NO_CHOICE:
        raise ValueError("the target's choice at the root is unknown")
    child = {
        (parent, token): node
        for node, (parent, token) in reversed(list(enumerate(zip(tree.parents, tree.tokens))))
        if node and tree.may_accept[node] and choices[node] != NO_CHOICE
    }
    node, path = 0, []
    while (following := child.get((node, choices[node]))) is not None:
        node = following
        path.append(node)
    return Verdict(tuple(path), (*(tree.tokens[node] for node in path), choices[node]))


def depth_tried(tree: TokenTree, choices: Sequence[int], path: Sequence[int]) -> int:
    """How far down drafted tokens were held against the target's choices, in tokens below the root.

    The accepted ``path`` of `verify`, and one more where the node at its end has a child that could have been entered. So over many
    passes the chance that depth d is accepted given that d - 1 was is the share of passes with a path of d or more
    among those with a depth of d or more.
    """
    end = path[-1] if path else 0
    tried = any(
        parent == end and accepts and choice != NO_CHOICE
        for parent, accepts, choice in zip(tree.parents, tree.may_accept, choices)
    )
    return len(path) + tried
