"""Tree attention on NVIDIA GPUs: FlashAttention over the context, a small masked part over the tree, joined.

Written against vLLM 0.32.0 and not yet run on a GPU; the masked part and the joining are tested on
CPU against a dense reference. Relies on ``FlashAttentionImpl.forward`` and its attributes,
``FlashAttentionMetadataBuilder.build``, ``flash_attn_varlen_func`` returning the log-sum-exp as
[heads, tokens], and ``merge_attn_states``.

The context of a tree is seen by all its nodes, so that part needs no mask; what is in flight, the
keys and values of the pass itself, is a few dozen tokens and is attended to densely. The two are
joined by their log-sum-exps (Ye et al. 2025, FlashInfer, arXiv 2501.01005, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.fa_utils import is_flash_attn_varlen_func_available
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.ops.merge_attn_states import merge_attn_states

from lookahead_bench.engine.executors import Fork
from lookahead_bench.engine.forks import forked
from lookahead_bench.tree import TokenTree

if is_flash_attn_varlen_func_available():
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The requests of a batch that have a tree in flight, packed one after the other.

    Attributes:
        tokens: int64 [t], their tokens' places in the batch.
        place: int64 [t], each token's place in the padded rows, row * width + node.
        starts: int32 [rows + 1], where each row begins among the packed tokens.
        context: int32 [rows], tokens whose KV was there before the pass.
        blocks: int32 [rows, ...], block tables.
        mask: bool [rows, width, width], who attends to whom; all false for padding.
        longest_context: the largest of ``context``.
        alone: whether the batch has no other rows.
    """

    tokens: torch.Tensor
    place: torch.Tensor
    starts: torch.Tensor
    context: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor
    longest_context: int
    alone: bool

    @property
    def width(self) -> int:
        """Nodes of the largest tree."""
        return self.mask.shape[-1]


def pack_trees(
    trees: Sequence[TokenTree | None], starts: Sequence[int], lengths: Sequence[int], blocks: torch.Tensor
) -> TreeRows | None:
    """Pack the rows that have a tree of more than its root; None if there is none.

    Args:
        trees: per request.
        starts: where each request's tokens begin in the batch; one more at the end.
        lengths: context and in-flight tokens of each request.
        blocks: the batch's block table [requests, ...], on the device to pack for.
    """
    rows = [row for row, tree in enumerate(trees) if tree is not None and len(tree) > 1]
    if not rows:
        return None
    device = blocks.device
    sizes = [len(trees[row]) for row in rows]
    width = max(sizes)
    mask = torch.zeros(len(rows), width, width, dtype=torch.bool)
    for index, (row, size) in enumerate(zip(rows, sizes)):
        mask[index, :size, :size] = torch.from_numpy(trees[row].mask())
    tokens = torch.cat([torch.arange(starts[row], starts[row] + size) for row, size in zip(rows, sizes)])
    place = torch.cat([torch.arange(size) + index * width for index, size in enumerate(sizes)])
    context = torch.tensor([lengths[row] - size for row, size in zip(rows, sizes)], dtype=torch.int32)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    return TreeRows(
        tokens=tokens.to(device),
        place=place.to(device),
        starts=ends.to(device, torch.int32),
        context=context.to(device),
        blocks=blocks[torch.tensor(rows, device=device)],
        mask=mask.to(device),
        longest_context=int(context.max()),
        alone=len(rows) == len(trees),
    )


def attend_in_flight(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: TreeRows, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each packed token's attention to the nodes of its own tree.

    Args:
        query: [t, heads, size]; key, value: [t, kv_heads, size], packed.

    Returns:
        Output [t, heads, size] in the query's dtype, and log-sum-exp float32 [heads, t].
    """
    heads, size = query.shape[1:]
    kv_heads = key.shape[1]
    shape = (len(rows.mask), rows.width)

    def padded(packed: torch.Tensor) -> torch.Tensor:
        out = packed.new_zeros(shape[0] * shape[1], *packed.shape[1:], dtype=torch.float32)
        out[rows.place] = packed.float()
        return out.view(*shape, *packed.shape[1:])

    q = padded(query).view(*shape, kv_heads, heads // kv_heads, size)
    scores = torch.einsum("rnkgd,rmkd->rkgnm", q, padded(key)) * scale
    scores = scores.masked_fill(~rows.mask[:, None, None], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    # Padding attends to nothing; its weights would be 0/0 and are never read.
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0.0)[..., None])
    out = torch.einsum("rkgnm,rmkd->rnkgd", weights, padded(value))
    out = out.reshape(shape[0] * shape[1], heads, size)[rows.place]
    lse = lse.permute(1, 2, 0, 3).reshape(heads, -1)[:, rows.place]
    return out.to(query.dtype), lse.contiguous()


def join(
    context: torch.Tensor, context_lse: torch.Tensor, own: torch.Tensor, own_lse: torch.Tensor
) -> torch.Tensor:
    """Attention over two disjoint sets of keys from that over each, [t, heads, size]."""
    joined = torch.empty_like(own)
    merge_attn_states(joined, context.contiguous(), context_lse.contiguous(), own.contiguous(), own_lse)
    return joined


@dataclass
class TreeFlashMetadata(FlashAttentionMetadata):
    """FlashAttention's metadata, and the trees."""

    trees: TreeRows | None = None


class TreeFlashMetadataBuilder(FlashAttentionMetadataBuilder):
    """FlashAttention's builder; packs the trees that the runner hands over."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    trees: Sequence[TokenTree | None] = ()
    """One entry per request of the coming batch, set by the runner before ``build``."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        base = super().build(common_prefix_len, common, fast_build)
        trees = pack_trees(
            self.trees,
            common.query_start_loc_cpu.tolist(),
            common.seq_lens_cpu_upper_bound.tolist(),
            common.block_table_tensor,
        )
        return TreeFlashMetadata(**{f.name: getattr(base, f.name) for f in fields(base)}, trees=trees)


class TreeFlashImpl(FlashAttentionImpl):
    """One layer's attention."""

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs):
        trees = attn_metadata.trees if attn_metadata is not None else None
        if trees is None or not trees.alone:
            # Rows with a tree come out wrong here, and are overwritten below.
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if trees is None:
            return output
        tokens = trees.tokens
        query, key, value = query[tokens], key[tokens], value[tokens]
        keys, values = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        context, context_lse = flash_attn_varlen_func(
            q=query,
            k=keys,
            v=values,
            cu_seqlens_q=trees.starts,
            max_seqlen_q=trees.width,
            seqused_k=trees.context,
            max_seqlen_k=trees.longest_context,
            softmax_scale=self.scale,
            causal=False,
            block_table=trees.blocks,
            return_softmax_lse=True,
            fa_version=self.vllm_flash_attn_version,
        )
        own, own_lse = attend_in_flight(query, key, value, trees, self.scale)
        output[tokens] = join(context, context_lse, own, own_lse).view_as(output[tokens])
        return output


class TreeFlashBackend(FlashAttentionBackend):
    """FlashAttention with trees."""

    @staticmethod
    def get_impl_cls() -> type[TreeFlashImpl]:
        return TreeFlashImpl

    @staticmethod
    def get_builder_cls() -> type[TreeFlashMetadataBuilder]:
        return TreeFlashMetadataBuilder


class ForkFlashMetadataBuilder(FlashAttentionMetadataBuilder):
    """FlashAttention's builder over forked rows."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    forks: Sequence[Fork] = ()
    """All rows of the coming batch, in order, set before ``build``."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return super().build(common_prefix_len, forked(common_attn_metadata, self.forks), fast_build)


class ForkFlashBackend(FlashAttentionBackend):
    """FlashAttention, unmodified; only its metadata builder is another."""

    @staticmethod
    def get_builder_cls() -> type[ForkFlashMetadataBuilder]:
        return ForkFlashMetadataBuilder


def copy_slots(kv_caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Move KV entries of every layer [blocks, kv_heads, block_size, 2 * size] between slots (may overlap)."""
    for kv_cache in kv_caches:
        size = kv_cache.shape[2]
        kv_cache[targets // size, :, targets % size] = kv_cache[sources // size, :, sources % size]
