"""How trees are laid out as tokens of a pass, and how the tree executor attends: pure parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_bench.engine.layout import fork_layout, tree_layout
from lookahead_bench.tree import TokenTree

pytestmark = pytest.mark.unit


@st.composite
def trees(draw, max_size: int = 14) -> TokenTree:
    size = draw(st.integers(1, max_size))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]
    tokens = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    return TokenTree(tuple(tokens), tuple(parents), (True,) * size)


@given(trees())
def test_tree_layout_computes_every_node_once(tree):
    layout = tree_layout(tree)
    assert layout.nodes == layout.first == tuple(range(len(tree)))
    assert (layout.tokens, layout.depths) == (tree.tokens, tree.depths)


@given(trees())
def test_fork_layout_has_one_row_per_leaf_in_causal_order(tree):
    layout = fork_layout(tree, max_paths=len(tree))
    rows = [layout.nodes[fork.start : fork.stop] for fork in layout.forks]
    assert rows == [(0, *tree.path(leaf)) for leaf in tree.leaves()]
    for row, fork in zip(rows, layout.forks):
        # Each token of a row is the child of the one before it: plain causal attention is right.
        assert all(tree.parents[child] == parent for parent, child in zip(row, row[1:]))
        assert layout.depths[fork.start : fork.stop] == tuple(range(len(row)))


@given(trees(), st.data())
def test_a_cut_leaves_a_whole_tree_that_is_computed(tree, data):
    max_paths = data.draw(st.sampled_from([None, 3, 99]))
    layout = tree_layout(tree) if max_paths is None else fork_layout(tree, max_paths)
    size = data.draw(st.integers(1, len(layout)))
    cut = layout.cut(size)
    assert len(cut) == min(size, len(layout))
    assert cut.tokens == layout.tokens[:size]
    assert cut.tree == tree.prefix(len(cut.tree))
    assert [cut.nodes[index] for index in cut.first] == list(range(len(cut.tree)))
    assert [index for fork in cut.forks for index in fork] == list(range(len(cut)))
    for node in range(len(cut.tree) if max_paths else 0):
        # Wherever verification ends, some row holds the whole path.
        path = cut.tree.path(node)
        fork = cut.fork_of(path)
        assert cut.nodes[fork.start : fork.start + 1 + len(path)] == (0, *path)


def test_a_path_that_is_not_computed_is_an_error():
    layout = fork_layout(TokenTree((1, 2, 3), (-1, 0, 0), (True,) * 3), 2)
    with pytest.raises(ValueError, match="no row"):
        layout.fork_of((1, 2))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@settings(max_examples=15, deadline=None)
@given(tree=trees(), context=st.integers(0, 40), grouped=st.sampled_from([(4, 4), (6, 2), (9, 3), (8, 1)]))
def test_tree_attention_equals_a_dense_reference(dtype, tolerance, tree, context, grouped):
    from lookahead_bench.engine.attention_cpu import attend, tree_mask

    heads, kv_heads = grouped
    n, size = len(tree), 32
    generator = torch.Generator().manual_seed(n * 100 + context)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)
    query, keys, values = draw(n, heads, size), draw(context + n, kv_heads, size), draw(context + n, kv_heads, size)
    group = heads // kv_heads
    expected = torch.empty(n, heads, size)
    for node in range(n):
        seen = [*range(context), *(context + other for other in (0, *tree.path(node)))]
        for head in range(heads):
            k, v = keys[seen, head // group].float(), values[seen, head // group].float()
            weights = torch.softmax(k @ query[node, head].float() * size**-0.5, dim=0)
            expected[node, head] = weights @ v
    mask = tree_mask(tree, context, dtype) if n > 1 else None
    found = attend(query, keys, values, mask, size**-0.5)
    assert torch.allclose(found.float(), expected, atol=tolerance)


@given(
    blocks=st.lists(st.integers(1, 50), min_size=4, max_size=4, unique=True),
    start=st.integers(0, 31),
    length=st.integers(1, 32),
)
def test_slots_follow_the_block_table(blocks, start, length):
    from lookahead_bench.engine.attention_cpu import slots_of

    size = 8
    end = min(start + length, 4 * size)
    slots = slots_of(np.array(blocks, dtype=np.int32), start, end, size)
    found = list(range(slots.start, slots.stop)) if isinstance(slots, slice) else slots.tolist()
    assert found == [blocks[position // size] * size + position % size for position in range(start, end)]


def test_a_row_sees_what_another_row_of_the_same_pass_writes():
    """Two requests with one prompt that come together share its blocks, whichever is computed first."""
    from lookahead_bench.engine.attention_cpu import (
        AttentionRow,
        TreeAttentionImpl,
        TreeAttentionMetadata,
        attend,
        token_major,
    )

    blocks, kv_heads, block_size, heads, size = 2, 1, 4, 2, 8
    impl = TreeAttentionImpl.__new__(TreeAttentionImpl)
    impl.head_size, impl.scale = size, size**-0.5
    cache = torch.zeros(blocks, kv_heads, block_size, 2 * size)
    query, key, value = torch.randn(5, heads, size), torch.randn(5, kv_heads, size), torch.randn(5, kv_heads, size)
    # The second row fills block 0; the first row has it as its context and writes to block 1.
    sharing = AttentionRow(slice(0, 1), write=slice(4, 5), read=slice(0, 5), mask=None, causal=False)
    filling = AttentionRow(slice(1, 5), write=slice(0, 4), read=slice(0, 4), mask=None, causal=True)
    output = torch.empty(5, heads, size)
    impl.forward(None, query, key, value, cache, TreeAttentionMetadata(5, (sharing, filling)), output)
    seen = token_major(cache)[:5]
    assert torch.equal(seen[:4, :, :size], key[1:]) and torch.equal(seen[4, :, :size], key[0])
    expected = attend(query[:1], torch.cat([key[1:], key[:1]]), torch.cat([value[1:], value[:1]]), None, size**-0.5)
    assert torch.allclose(output[:1], expected, atol=1e-6)
