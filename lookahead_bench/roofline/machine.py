"""How fast this machine reads weights and multiplies matrices, measured with torch's own kernels."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lookahead_bench.roofline.limits import Machine

_READ_BYTES = 1 << 28  # many times what the caches hold, so that every pass reads memory
_SIDE = 2048
_SECONDS = 2.0
"""How long each rate is measured; the best pass counts, since others can only make a pass slower."""


def measure(dtype: torch.dtype) -> Machine:
    """Measure both rates on all threads that torch uses; takes about five seconds and 1 GiB."""
    width = 4096
    with torch.inference_mode():
        weights = torch.rand(_READ_BYTES // dtype.itemsize // width, width).to(dtype)
        vector = torch.rand(1, width).to(dtype)
        read = _best(lambda: torch.nn.functional.linear(vector, weights))
        left, right = (torch.rand(_SIDE, _SIDE).to(dtype) for _ in range(2))
        multiply = _best(lambda: torch.nn.functional.linear(left, right))
    return Machine(weights.nbytes / read, 2 * _SIDE**3 / multiply)


def _best(action: Callable[[], object]) -> float:
    """Seconds of the fastest call."""
    action()
    best, ends = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < ends:
        began = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - began)
    return best
