"""The C++ kernels as torch has them: loaded once per process, and for which dtypes they are."""

from __future__ import annotations

import torch

from lookahead_bench.engine.native.build import built


def fits(dtype: torch.dtype) -> bool:
    """Whether the kernels compute in this dtype."""
    return dtype in (torch.float32, torch.bfloat16)


def load() -> None:
    """Register the kernels as ``torch.ops.lookahead_bench``; builds them where they are not there yet.

    Raises:
        OSError, CalledProcessError, InputError: they can't be built.
    """
    if hasattr(torch.ops.lookahead_bench, "linear"):
        return
    torch.ops.load_library(str(built()))

    @torch.library.register_fake("lookahead_bench::linear")
    def shape(input, packed, bias):
        return input.new_empty((*input.shape[:-1], packed.shape[0]))
