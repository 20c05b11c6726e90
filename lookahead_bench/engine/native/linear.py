"""The kernel of ``linear.cpp`` in place of vLLM's for a model's linear layers, on CPU.

Tested with vLLM 0.32.0. Relies on ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm``
being looked up where a layer is processed after loading, and on ``layer.cpu_linear(x, weight, bias)``
being what such a layer computes with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from vllm.model_executor.layers import utils

from lookahead_bench.engine.native.library import load

PANEL = 16
"""Outputs of a packed panel; a layer with another multiple keeps vLLM's kernel."""


@contextmanager
def native_linear() -> Iterator[None]:
    """Layers that are loaded meanwhile compute with the native kernel, where it has their dtype and shape."""
    load()
    stock = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        if not fits(layer.weight):
            stock(layer, remove_weight)
        elif remove_weight:
            packed = torch.ops.lookahead_bench.pack(layer.weight.detach())
            layer.weight = torch.nn.Parameter(packed, requires_grad=False)
            layer.cpu_linear = torch.ops.lookahead_bench.linear
        else:
            layer.cpu_linear = _PackedAtFirstUse()

    utils.dispatch_cpu_unquantized_gemm = dispatch
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = stock


def fits(weight: torch.Tensor) -> bool:
    """Whether the kernel computes with this weight."""
    return (
        weight.ndim == 2
        and not weight.is_meta
        # Processors with tiles multiply bfloat16 matrices by a kernel of vLLM's that uses them.
        and (weight.dtype == torch.float32 or weight.dtype == torch.bfloat16 and not torch.cpu._is_amx_tile_supported())
        and weight.shape[0] % PANEL == 0
        and weight.shape[1] % 2 == 0
    )


class _PackedAtFirstUse:
    """For embeddings, which keep their weight: only those that are an LM head as well are ever packed."""

    def __init__(self) -> None:
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._packed is None:
            self._packed = torch.ops.lookahead_bench.pack(weight.detach())
        return torch.ops.lookahead_bench.linear(x, self._packed, bias)
