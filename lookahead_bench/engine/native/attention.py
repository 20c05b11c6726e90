"""The kernel of ``attention.cpp`` in place of torch's attention for the tree executor, on CPU.

Tested with vLLM 0.32.0. Relies on what ``attention_cpu`` relies on, and on blocks of a multiple of
32 tokens and heads of a multiple of 16, which are all that vLLM's CPU backend takes.

One call per layer writes the batch's keys and values to the paged cache and attends, straight from
the cache: nothing is gathered, and a request's mask is bits for the tokens in flight alone. The
bytes of a layer's cache are laid out by the kernel; nobody else reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lookahead_bench.engine.attention_cpu import (
    TreeAttentionBackend,
    TreeAttentionImpl,
    TreeAttentionMetadataBuilder,
)
from lookahead_bench.engine.native.library import load
from lookahead_bench.tree import TokenTree

PANEL = 16
"""Tokens whose visibility is one word of a mask."""
CAUSAL = -1
"""In place of where a request's masks begin: each token sees all up to itself."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the kernel needs to know of a batch, the same for every layer.

    Attributes:
        requests: int64 [n, 5]: first token in the batch, tokens, context, where the masks begin
            (or CAUSAL), panels per mask.
        blocks: int32 [n, most blocks]: the KV blocks of each request.
        masks: int16, per token of a tree its panels from the one that the context ends in.
    """

    requests: torch.Tensor
    blocks: torch.Tensor
    masks: torch.Tensor


def batch_of(
    starts: Sequence[int], lengths: Sequence[int], blocks: torch.Tensor, trees: Sequence[TokenTree | None]
) -> Batch:
    """Describe a batch.

    Args:
        starts: [n + 1], where each request's tokens begin, and where the last's end.
        lengths: [n], tokens of each request's context and of this batch together.
        blocks: int32 [at least n, most blocks].
        trees: per request the tree that its tokens are, None for tokens one after the other.
    """
    requests, masks, size = [], [], 0
    for row, tree in enumerate(trees):
        queries = starts[row + 1] - starts[row]
        context = lengths[row] - queries
        first, panels = CAUSAL, 0
        if tree is not None and queries > 1:
            bits = panel_bits(tree, context % PANEL)
            first, panels = size, bits.shape[1]
            masks.append(bits.ravel())
            size += bits.size
        requests.append((starts[row], queries, context, first, panels))
    together = np.concatenate(masks) if masks else np.empty(0, np.int16)
    return Batch(torch.tensor(requests), blocks, torch.from_numpy(together))


def panel_bits(tree: TokenTree, lead: int) -> np.ndarray:
    """Who sees whom, int16 [nodes, panels]: bit i of a panel is its token i.

    Args:
        tree: the tree.
        lead: tokens of the context in the first panel; every node sees them.
    """
    nodes = len(tree)
    bits = np.zeros((nodes, -(-(lead + nodes) // PANEL) * PANEL), bool)
    bits[:, :lead] = True
    bits[:, lead : lead + nodes] = tree.mask()
    return np.packbits(bits, axis=1, bitorder="little").view(np.int16)


class NativeMetadataBuilder(TreeAttentionMetadataBuilder):
    """Turns the batch, and the trees that the runner hands over, into the kernel's tables."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> Batch:
        common = common_attn_metadata
        starts, lengths = common.query_start_loc_cpu.tolist(), common.seq_lens.tolist()
        return batch_of(starts, lengths, common.block_table_tensor, self.trees)


class NativeAttentionImpl(TreeAttentionImpl):
    """One layer's attention, in one call."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        load()

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None
    ) -> torch.Tensor:
        """As ``TreeAttentionImpl.forward``; ``attn_metadata`` is a Batch."""
        if attn_metadata is not None:
            batch = attn_metadata
            torch.ops.lookahead_bench.attend.default(
                query, key, value, kv_cache, output, batch.requests, batch.blocks, batch.masks, self.scale
            )
        return output


def copy_slots(kv_caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Move KV entries of every layer from ``sources`` to ``targets`` (slots, int64, may overlap)."""
    torch.ops.lookahead_bench.copy_slots(list(kv_caches), sources, targets)


class NativeAttentionBackend(TreeAttentionBackend):
    """Registered in place of vLLM's CPU backend in the processes that run the tree executor natively."""

    @staticmethod
    def get_impl_cls() -> type[NativeAttentionImpl]:
        return NativeAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[NativeMetadataBuilder]:
        return NativeMetadataBuilder
