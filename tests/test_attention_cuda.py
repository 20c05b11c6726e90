"""The GPU path's own arithmetic, on CPU: packing trees, attending in flight, joining with the context."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_bench.engine.attention_cuda import attend_in_flight, copy_slots, join, pack_trees
from lookahead_bench.tree import TokenTree
from tests.test_layout import trees

pytestmark = pytest.mark.unit

SIZE = 32


def dense(query, keys, values, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One token's attention in float32: output [heads, size] and log-sum-exp [heads]."""
    out, lse = [], []
    for head in range(query.shape[0]):
        scores = keys[:, head // group].float() @ query[head].float() * SIZE**-0.5
        lse.append(torch.logsumexp(scores, dim=0))
        out.append(torch.softmax(scores, dim=0) @ values[:, head // group].float())
    return torch.stack(out), torch.stack(lse)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 3e-6), (torch.bfloat16, 2e-2)])
@settings(max_examples=15, deadline=None)
@given(
    batch=st.lists(st.tuples(st.one_of(st.none(), trees(9)), st.integers(1, 30)), min_size=1, max_size=4),
    grouped=st.sampled_from([(4, 4), (6, 2), (9, 3), (8, 1)]),
    seed=st.integers(0, 99),
)
def test_joined_parts_equal_dense_attention(dtype, tolerance, batch, grouped, seed):
    heads, kv_heads = grouped
    group = heads // kv_heads
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)
    sizes = [5 if tree is None else len(tree) for tree, _ in batch]
    starts = [sum(sizes[:row]) for row in range(len(sizes) + 1)]
    lengths = [context + size for (_, context), size in zip(batch, sizes)]
    query, key, value = draw(starts[-1], heads, SIZE), draw(starts[-1], kv_heads, SIZE), draw(starts[-1], kv_heads, SIZE)
    past = [(draw(context, kv_heads, SIZE), draw(context, kv_heads, SIZE)) for _, context in batch]
    blocks = torch.arange(len(batch) * 3, dtype=torch.int32).view(len(batch), 3)

    rows = pack_trees([tree for tree, _ in batch], starts, lengths, blocks)
    drafting = [row for row, (tree, _) in enumerate(batch) if tree is not None and len(tree) > 1]
    if not drafting:
        assert rows is None
        return
    assert rows.alone == (len(drafting) == len(batch))
    assert rows.blocks.tolist() == blocks[drafting].tolist()
    assert rows.context.tolist() == [batch[row][1] for row in drafting]

    expected, context, context_lse = [], [], []
    for row in drafting:
        tree, _ = batch[row]
        keys, values = past[row]
        for node in range(len(tree)):
            seen = [starts[row] + other for other in (0, *tree.path(node))]
            token = query[starts[row] + node]
            expected.append(dense(token, torch.cat([keys, key[seen]]), torch.cat([values, value[seen]]), group)[0])
            out, lse = dense(token, keys, values, group)
            context.append(out)
            context_lse.append(lse)
    tokens = rows.tokens
    own, own_lse = attend_in_flight(query[tokens], key[tokens], value[tokens], rows, SIZE**-0.5)
    found = join(torch.stack(context).to(dtype), torch.stack(context_lse, dim=1), own, own_lse)
    assert torch.allclose(found.float(), torch.stack(expected), atol=tolerance)


def test_a_lone_root_needs_no_mask():
    assert pack_trees([TokenTree.root(3), None], [0, 1, 4], [9, 9], torch.zeros(2, 1, dtype=torch.int32)) is None


def test_slots_are_moved_whatever_the_strides():
    """Source and target may overlap; the layer's tensor need not be contiguous."""
    base = torch.arange(4 * 8 * 2 * 6, dtype=torch.float32).view(4, 8, 2, 6)
    cache = base.transpose(1, 2)  # [blocks, kv_heads, block_size, width], token-major underneath
    before = cache.clone()
    sources, targets = torch.tensor([9, 10, 20]), torch.tensor([8, 9, 10])
    copy_slots([cache], sources, targets)
    for source, target in zip(sources.tolist(), targets.tolist()):
        assert torch.equal(cache[target // 8, :, target % 8], before[source // 8, :, source % 8])
    assert torch.equal(cache[0], before[0]) and torch.equal(cache[3], before[3])
