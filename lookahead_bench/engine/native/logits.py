"""The kernel of ``largest.cpp``: the greedy choice and the top-k of logits, on CPU."""

from __future__ import annotations

import torch

from lookahead_bench.engine.native.library import load


def largest(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Where the k largest of each row of ``logits`` [rows, vocabulary] are, largest first; int64 [rows, k].

    Of equal ones the first comes first, as with ``argmax``; which one ``topk`` takes torch leaves open.
    """
    load()
    return torch.ops.lookahead_bench.largest(logits, k)
