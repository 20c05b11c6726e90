"""Tree attention over vLLM's paged KV cache on CPU.

Tested with vLLM 0.32.0. Relies on: ``CPUAttentionBackend`` and its metadata builder,
``CPUAttentionBackendImpl``'s constructor, ``forward_includes_kv_cache_update``, and a KV cache
tensor per layer of shape [num_blocks, num_kv_heads, block_size, 2 * head_size] that is contiguous.

The same bytes are read here token by token, as [num_blocks * block_size, num_kv_heads,
2 * head_size], keys first: vLLM's own kernel packs keys for the instruction set and has no place
for a mask, so this backend writes and reads the cache itself, prompts included. Where the blocks
of a request follow one another its context is a view; otherwise it is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from lookahead_bench.tree import TokenTree

def tree_mask(tree: TokenTree, context: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [n, context + n]: the whole context, the ancestors and the node itself."""
    mask = torch.zeros(len(tree), context + len(tree), dtype=dtype)
    mask[:, context:].masked_fill_(torch.from_numpy(~tree.mask()), float("-inf"))
    return mask


def causal_mask(queries: int, context: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [queries, context + queries] of a chunk that continues a context."""
    mask = torch.zeros(queries, context + queries, dtype=dtype)
    later = torch.ones(queries, queries, dtype=torch.bool).triu(1)
    mask[:, context:].masked_fill_(later, float("-inf"))
    return mask


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One request's part of the batch.

    Attributes:
        queries: its rows of the query tensor.
        write: KV slots of these rows; a slice where they follow one another.
        read: KV slots of the context and these rows, in order of attention; a slice where possible.
        mask: additive [n, context + n]; None where every query sees everything, or if ``causal``.
        causal: a chunk without context: the triangle, without a mask of its own.
    """

    queries: slice
    write: slice | torch.Tensor
    read: slice | torch.Tensor
    mask: torch.Tensor | None
    causal: bool


@dataclass(frozen=True, slots=True)
class TreeAttentionMetadata:
    """What every layer's attention needs to know of a batch."""

    num_actual_tokens: int
    rows: tuple[AttentionRow, ...]


def slots_of(blocks: np.ndarray, start: int, end: int, block_size: int) -> slice | torch.Tensor:
    """KV slots of the token positions [start, end), as a slice if they follow one another."""
    used = blocks[start // block_size : (end - 1) // block_size + 1].astype(np.int64)
    if len(used) == 1 or (np.diff(used) == 1).all():
        first = int(used[0]) * block_size + start % block_size
        return slice(first, first + end - start)
    positions = np.arange(start, end)
    return torch.from_numpy(blocks[positions // block_size].astype(np.int64) * block_size + positions % block_size)


class TreeAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """Turns the batch, and the trees that the runner hands over, into attention rows."""

    trees: Sequence[TokenTree | None] = ()
    """One entry per request of the coming batch, set by the runner before ``build``."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        starts = common.query_start_loc_cpu.tolist()
        lengths = common.seq_lens.tolist()
        blocks = common.block_table_tensor.numpy()
        rows = tuple(
            self._row(starts[row], starts[row + 1], lengths[row], blocks[row], tree)
            for row, tree in zip(range(common.num_reqs), self.trees, strict=True)
        )
        return TreeAttentionMetadata(common.num_actual_tokens, rows)

    def _row(
        self, start: int, end: int, length: int, blocks: np.ndarray, tree: TokenTree | None
    ) -> AttentionRow:
        queries = end - start
        context = length - queries
        causal = tree is None and context == 0
        mask = None
        if tree is not None and queries > 1:
            mask = tree_mask(tree, context, self.dtype)
        elif queries > 1 and not causal:
            mask = causal_mask(queries, context, self.dtype)
        return AttentionRow(
            queries=slice(start, end),
            write=slots_of(blocks, context, length, self.block_size),
            read=slots_of(blocks, 0, length, self.block_size),
            mask=mask,
            causal=causal and queries > 1,
        )


class TreeAttentionImpl(CPUAttentionBackendImpl):
    """One layer's attention. Refuses at start what it does not compute.

    Raises:
        NotImplementedError: the layer uses ALiBi, a sliding window, soft-capped logits, attention
            sinks, a quantised KV cache, shared KV, or is not a decoder layer.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        unsupported = {
            "ALiBi": self.alibi_slopes is not None,
            "a sliding window": self.sliding_window != -1,
            "soft-capped attention logits": self.logits_soft_cap != 0,
            "attention sinks": self.sinks is not None,
            "a quantised KV cache": self.is_fp8_kv_cache,
            "KV shared between layers": self.kv_sharing_target_layer_name is not None,
            "other than decoder attention": self.attn_type != AttentionType.DECODER,
        }
        for what, found in unsupported.items():
            if found:
                raise NotImplementedError(f"tree attention does not support {what}")

    def forward(
        self,
        layer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TreeAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the batch's keys and values to their slots, then attend.

        Args:
            query: [num_tokens, num_heads, head_size]; key, value: [num_tokens, num_kv_heads, head_size].
            kv_cache: [num_blocks, num_kv_heads, block_size, 2 * head_size].
            attn_metadata: None while vLLM profiles or warms up.
            output: [num_tokens, num_heads, head_size], written in place.
        """
        if attn_metadata is None:
            return output
        size = self.head_size
        slots = token_major(kv_cache)
        keys, values = slots[..., :size], slots[..., size:]
        # All rows are written before any attends: with prefix caching a row may share a block that
        # another row of the same pass fills.
        for row in attn_metadata.rows:
            keys[row.write] = key[row.queries]
            values[row.write] = value[row.queries]
        for row in attn_metadata.rows:
            output[row.queries] = attend(
                query[row.queries], keys[row.read], values[row.read], row.mask, self.scale, row.causal
            )
        return output


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    causal: bool = False,
) -> torch.Tensor:
    """One request's attention, heads in groups that share keys.

    Args:
        query: [n, heads, size].
        keys, values: [length, kv_heads, size].
        mask: additive [n, length]; None where every query sees everything.
        causal: query i sees the keys up to i (then ``length`` is n, and there is no mask).

    Returns:
        [n, heads, size].
    """
    n, heads, size = query.shape
    kv_heads = keys.shape[1]
    keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    if n == 1 and mask is None and query.dtype != torch.float32:
        # torch's grouped attention is several times slower for one half-precision query than for
        # the same heads as further queries.
        grouped = query.view(1, kv_heads, heads // kv_heads, size)
        return scaled_dot_product_attention(grouped, keys, values, scale=scale).view(1, heads, size)
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys,
        values,
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=heads != kv_heads,
    )
    return out[0].transpose(0, 1)


def token_major(kv_cache: torch.Tensor) -> torch.Tensor:
    """One layer's KV cache seen slot by slot: [num_slots, num_kv_heads, 2 * head_size]."""
    num_blocks, num_kv_heads, block_size, width = kv_cache.shape
    return kv_cache.view(num_blocks * block_size, num_kv_heads, width)


def copy_slots(kv_caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Move KV entries of every layer from ``sources`` to ``targets`` (slots, int64, may overlap)."""
    for kv_cache in kv_caches:
        slots = token_major(kv_cache)
        slots[targets] = slots[sources]


class TreeAttentionBackend(CPUAttentionBackend):
    """Registered in place of vLLM's CPU backend in the processes that run the tree executor."""

    forward_includes_kv_cache_update = True

    @staticmethod
    def get_impl_cls() -> type[TreeAttentionImpl]:
        return TreeAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[TreeAttentionMetadataBuilder]:
        return TreeAttentionMetadataBuilder
