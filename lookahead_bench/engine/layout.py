"""How a token tree is laid out as the tokens of one forward pass. Pure: no torch, no vLLM.

The tree executor computes every node once, in tree order, in one row of attention with a mask.
The fork executor computes every root-to-leaf path as a row of its own, root included, so that no
mask is needed; nodes that paths share are computed once per path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lookahead_bench.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Layout:
    """The tokens that one request contributes to a pass.

    Attributes:
        tree: what is verified.
        nodes: the node that each token stands for, the root (0) first. After a cut there may be
            tokens of nodes beyond ``tree``: they are computed, and nobody looks at them.
        tokens: token ids, in order.
        depths: each token's position, counted from the root's.
        forks: ranges of the above, one per row of attention.
    """

    tree: TokenTree
    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    depths: tuple[int, ...]
    forks: tuple[range, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def first(self) -> tuple[int, ...]:
        """Per node of the tree, where it is computed first."""
        first: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            first.setdefault(node, index)
        return tuple(first[node] for node in range(len(self.tree)))

    def cut(self, size: int) -> Layout:
        """What is left when only the first ``size`` tokens (at least 1) are computed.

        The tree becomes its largest prefix whose nodes are all among them.
        """
        if size >= len(self):
            return self
        nodes = self.nodes[:size]
        present = set(nodes)
        whole = next((node for node in range(len(self.tree)) if node not in present), len(self.tree))
        forks = tuple(range(fork.start, min(fork.stop, size)) for fork in self.forks if fork.start < size)
        return Layout(self.tree.prefix(whole), nodes, self.tokens[:size], self.depths[:size], forks)

    def fork_of(self, path: Sequence[int]) -> range:
        """The row that computes all of ``path`` (nodes below the root, in order).

        Raises:
            ValueError: no row does.
        """
        wanted = (0, *path)
        for fork in self.forks:
            if len(fork) >= len(wanted) and self.nodes[fork.start : fork.start + len(wanted)] == wanted:
                return fork
        raise ValueError(f"no row of the layout computes the path {tuple(path)}")


def tree_layout(tree: TokenTree) -> Layout:
    """Every node once, in tree order."""
    nodes = tuple(range(len(tree)))
    return Layout(tree, nodes, tree.tokens, tree.depths, (range(len(tree)),))


def fork_layout(tree: TokenTree, max_paths: int) -> Layout:
    """Every root-to-leaf path as a row of its own: [root, path...].

    Args:
        tree: the draft.
        max_paths: most rows (at least 1); what only later leaves need is not computed.
    """
    rows = [(0, *tree.path(leaf)) for leaf in tree.leaves()]
    nodes = tuple(node for row in rows for node in row)
    depths = tuple(depth for row in rows for depth in range(len(row)))
    forks, start = [], 0
    for row in rows:
        forks.append(range(start, start + len(row)))
        start += len(row)
    whole = Layout(tree, nodes, tuple(tree.tokens[node] for node in nodes), depths, tuple(forks))
    return whole.cut(forks[: max_paths][-1].stop)
