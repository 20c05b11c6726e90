"""A batch's attention metadata with one row per fork: all that vLLM's unmodified kernels need to know.

Tested with vLLM 0.32.0. Relies on ``CommonAttentionMetadata``'s fields ``num_reqs``,
``query_start_loc``, ``seq_lens``, ``block_table_tensor``, ``max_query_len`` and ``max_seq_len``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from lookahead_bench.engine.executors import Fork


def forked(common: CommonAttentionMetadata, forks: Sequence[Fork]) -> CommonAttentionMetadata:
    """The batch's metadata with one row per fork in place of one per request."""
    device = common.seq_lens.device
    starts = torch.tensor([*(fork.start for fork in forks), forks[-1].stop], dtype=torch.int32)
    lengths = torch.tensor([fork.length for fork in forks], dtype=common.seq_lens.dtype)
    parents = torch.tensor([fork.request for fork in forks], device=device)
    blocks = common.block_table_tensor[parents]
    for row, fork in enumerate(forks):
        if fork.blocks:
            end = fork.first_block + len(fork.blocks)
            blocks[row, fork.first_block : end] = torch.tensor(fork.blocks, dtype=blocks.dtype, device=device)
    return replace(
        common,
        num_reqs=len(forks),
        query_start_loc=starts.to(common.query_start_loc),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        seq_lens_cpu_upper_bound=lengths,
        block_table_tensor=blocks,
        max_query_len=max(fork.stop - fork.start for fork in forks),
        max_seq_len=max(fork.length for fork in forks),
        is_prefilling=None,
    )
