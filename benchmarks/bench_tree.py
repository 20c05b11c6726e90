"""What a token tree costs on the host besides drafting: verification, layouts, mask."""

from __future__ import annotations

import random

import pytest

from lookahead_bench.engine.layout import fork_layout, tree_layout
from lookahead_bench.tree import TokenTree, TreeBuilder
from lookahead_bench.verify import verify

each_size = pytest.mark.parametrize("nodes", [8, 32, 128])


def tree_of(nodes: int) -> TokenTree:
    """A random tree of ``nodes`` drafted tokens whose every node is a chain's end or has few children."""
    draw = random.Random(nodes)
    builder = TreeBuilder(0, nodes)
    while builder.room:
        builder.add(draw.randint(max(0, nodes - builder.room - 6), nodes - builder.room), draw.randrange(1, 50_000))
    return builder.build()


@each_size
def bench_verify(benchmark, nodes):
    """A walk along the first path of the tree, all of it accepted."""
    benchmark.group = "verify"
    tree = tree_of(nodes)
    choices = [0] * len(tree)
    for node in range(len(tree) - 1, 0, -1):
        choices[tree.parents[node]] = tree.tokens[node]
    assert verify(tree, choices).path
    benchmark(verify, tree, choices)


@each_size
@pytest.mark.parametrize("executor", ["tree", "fork"])
def bench_layout(benchmark, nodes, executor):
    """From a tree to the tokens of a pass."""
    benchmark.group = "layout"
    tree = tree_of(nodes)
    benchmark(tree_layout, tree) if executor == "tree" else benchmark(fork_layout, tree, 32)


@each_size
def bench_mask(benchmark, nodes):
    """Who attends to whom among the nodes."""
    benchmark.group = "mask"
    benchmark(tree_of(nodes).mask)
