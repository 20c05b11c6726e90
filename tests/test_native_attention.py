"""The native attention kernel: right, and the same for a row whatever the batch and the threads are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_bench.engine.native import build
from lookahead_bench.tree import TokenTree
from tests.test_layout import trees

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not build.can_build(), reason="no C++ compiler for the kernels here"),
]
DTYPES = (torch.float32, torch.bfloat16)
GROUPED = ((4, 4), (6, 2), (9, 3), (8, 1))
CHUNK = 128
"""The kernel's own: contexts around its multiples are joined of one part more."""


class Paged:
    """Requests over one paged cache, and what the kernel and float64 make of them.

    Args:
        rows: per request its tree (or a number of tokens in a row) and the length of its context.
        blocks: ids of KV blocks, given out from the front.
    """

    def __init__(self, rows, heads, kv_heads, size, dtype, block_size=32, seed=0):
        from lookahead_bench.engine.native.attention import batch_of
        from lookahead_bench.engine.native.library import load

        load()
        self.heads, self.kv_heads, self.size, self.block_size = heads, kv_heads, size, block_size
        generator = torch.Generator().manual_seed(seed)
        self.draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)
        self.trees = [None if isinstance(row, int) else row for row, _ in rows]
        counts = [row if isinstance(row, int) else len(row) for row, _ in rows]
        self.starts = [sum(counts[:row]) for row in range(len(rows) + 1)]
        self.contexts = [context for _, context in rows]
        self.lengths = [context + count for (_, context), count in zip(rows, counts)]
        most = -(-max(self.lengths) // block_size)
        shuffled = torch.randperm(len(rows) * most, generator=generator)
        self.blocks = shuffled.view(len(rows), most).to(torch.int32)
        # What nobody wrote is not a number: reading it as context would show.
        self.cache = torch.full((len(rows) * most, kv_heads, block_size, 2 * size), float("nan"), dtype=dtype)
        self.past = [(self.draw(c, kv_heads, size), self.draw(c, kv_heads, size)) for c in self.contexts]
        total = self.starts[-1]
        self.query, self.key, self.value = (self.draw(total, h, size) for h in (heads, kv_heads, kv_heads))
        self.batch = batch_of(self.starts, self.lengths, self.blocks, self.trees)
        for row, (keys, values) in enumerate(self.past):
            if len(keys):
                whole = batch_of([0, len(keys)], [len(keys)], self.blocks[row : row + 1], [None])
                self.call(self.draw(len(keys), heads, size), keys, values, whole)

    def call(self, query, key, value, batch):
        output = torch.full_like(query, float("nan"))
        torch.ops.lookahead_bench.attend(
            query, key, value, self.cache, output, batch.requests, batch.blocks, batch.masks, self.size**-0.5
        )
        return output

    def found(self):
        return self.call(self.query, self.key, self.value, self.batch)

    def expected(self):
        out = torch.empty(self.query.shape, dtype=torch.float64)
        group = self.heads // self.kv_heads
        for row, (tree, context) in enumerate(zip(self.trees, self.contexts)):
            begin, end = self.starts[row], self.starts[row + 1]
            keys = torch.cat([self.past[row][0], self.key[begin:end]]).double().repeat_interleave(group, dim=1)
            values = torch.cat([self.past[row][1], self.value[begin:end]]).double().repeat_interleave(group, dim=1)
            own = torch.ones(end - begin, end - begin).tril().bool() if tree is None else torch.from_numpy(tree.mask())
            mask = torch.cat([torch.ones(end - begin, context, dtype=torch.bool), own], dim=1)
            scores = torch.einsum("qhd,khd->hqk", self.query[begin:end].double(), keys) * self.size**-0.5
            weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
            out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
        return out


def assert_close(found, expected):
    # bfloat16 results carry half a unit of their last place; inputs are the same rounded ones.
    relative = 2**-8 if found.dtype == torch.bfloat16 else 0
    assert (found.double() - expected).abs().le(expected.abs() * relative + 5e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.integers(1, 40), trees(40)), st.integers(0, 300)), min_size=1, max_size=4
    ),
    grouped=st.sampled_from(GROUPED),
    size=st.sampled_from((16, 64, 80, 96, 128)),
    seed=st.integers(0, 99),
)
def test_attention_over_scattered_blocks_equals_float64(dtype, rows, grouped, size, seed):
    paged = Paged(rows, *grouped, size, dtype, seed=seed)
    assert_close(paged.found(), paged.expected())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries, context", [(1, CHUNK - 1), (1, CHUNK), (3, 2 * CHUNK - 2), (64, 1500), (300, 0), (200, 333)])
def test_long_contexts_and_prompts_equal_float64(dtype, queries, context):
    """Chunks are joined; a prompt continues a context; blocks are longer than a chunk."""
    paged = Paged([(queries, context)], 9, 3, 64, dtype, block_size=160)
    assert_close(paged.found(), paged.expected())


def chain_and_siblings(size: int) -> TokenTree:
    parents = (-1, *(node - 1 if node % 3 else node // 2 for node in range(1, size)))
    return TokenTree((0,) * size, parents, (True,) * size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_bits_whatever_the_batch_and_the_threads(dtype):
    tree, context = chain_and_siblings(20), 700
    among = Paged([(tree, context), (9, 400), (chain_and_siblings(40), 31)], 9, 3, 64, dtype, seed=5)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = among.found()
        for count in (2, 3):
            torch.set_num_threads(count)
            assert torch.equal(among.found(), one)
    finally:
        torch.set_num_threads(threads)
    # Alone, and one path of the tree as a chain: each row's own sums do not change.
    from lookahead_bench.engine.native.attention import batch_of

    alone = batch_of([0, 20], [720], among.blocks[:1], [tree])
    assert torch.equal(among.call(among.query[:20], among.key[:20], among.value[:20], alone), one[:20])
    first = batch_of([0, 1], [701], among.blocks[:1], [None])
    assert torch.equal(among.call(among.query[:1], among.key[:1], among.value[:1], first), one[:1])


def test_a_row_sees_what_another_row_of_the_same_pass_writes():
    """Two requests with one prompt that come together share its blocks, whichever is computed first."""
    from lookahead_bench.engine.native.attention import batch_of

    paged = Paged([(1, 0), (32, 0)], 6, 2, 32, torch.float32)
    blocks = torch.tensor([[1, 0], [1, 1]], dtype=torch.int32)  # the second request fills block 1
    found = paged.call(paged.query, paged.key, paged.value, batch_of([0, 1, 33], [33, 32], blocks, [None, None]))
    sees = Paged([(1, 32)], 6, 2, 32, torch.float32)
    sees.query, sees.key, sees.value = paged.query[:1], paged.key[:1], paged.value[:1]
    sees.past = [(paged.key[1:], paged.value[1:])]
    assert_close(found[:1], sees.expected())


@pytest.mark.parametrize("dtype", DTYPES)
def test_slots_are_moved_in_every_layer(dtype):
    """Sources and targets overlap; what is moved is attended to where it went."""
    from lookahead_bench.engine.native.attention import batch_of, copy_slots

    paged = Paged([(1, 70)], 9, 3, 64, dtype)
    keys, values = paged.past[0]
    other = paged.cache.clone()
    slot = lambda position: int(paged.blocks[0, position // 32]) * 32 + position % 32
    sources, targets = [40, 41, 69, 5], [39, 40, 41, 64]
    copy_slots([paged.cache, other], torch.tensor(list(map(slot, sources))), torch.tensor(list(map(slot, targets))))
    before = (keys.clone(), values.clone())
    for source, target in zip(sources, targets):
        keys[target], values[target] = before[0][source], before[1][source]
    assert_close(paged.found(), paged.expected())
    paged.cache = other
    assert_close(paged.found(), paged.expected())
    untouched = batch_of([0, 1], [6], paged.blocks[:1], [None])
    assert not paged.call(paged.query, paged.key, paged.value, untouched).isnan().any()


def test_what_does_not_fit_is_refused():
    paged = Paged([(1, 3)], 4, 4, 16, torch.float32)
    with pytest.raises(RuntimeError, match="one dtype"):
        paged.call(paged.query.bfloat16(), paged.key, paged.value, paged.batch)
    paged.cache = paged.cache[:, :, :16].contiguous()
    with pytest.raises(RuntimeError, match="blocks of 16 tokens"):
        paged.found()
