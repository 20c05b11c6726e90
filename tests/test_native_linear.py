"""The native kernel for linear layers: right, and the same for a row whatever the batch is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lookahead_bench.engine import settings
from lookahead_bench.engine.native import build
from lookahead_bench.errors import ConfigError

pytestmark = pytest.mark.unit

needs_kernels = pytest.mark.skipif(not build.can_build(), reason="no C++ compiler for the kernels here")
DTYPES = (torch.float32, torch.bfloat16)
# The default model's layers, and shapes that leave rest panels: an odd number of panels, a K of 2.
SHAPES = ((960, 576), (576, 1536), (48, 2), (16, 70))
ROWS = (1, 2, 3, 6, 7, 14, 15, 28, 29, 57)


def linear(x, weight, bias=None):
    from lookahead_bench.engine.native.linear import load

    load()
    return torch.ops.lookahead_bench.linear(x, torch.ops.lookahead_bench.pack(weight), bias)


def drawn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(x, weight, bias=None):
    """In float64, from the same rounded inputs."""
    return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


def assert_close(found, x, weight, bias=None):
    expected = exact(x, weight, bias)
    # Of the sum one rounding per element of K, of the result half a unit in its last place.
    magnitude = exact(x.abs(), weight.abs(), None if bias is None else bias.abs())
    rounding = 2**-8 if found.dtype == torch.bfloat16 else 2**-24
    bound = magnitude * x.shape[-1] ** 0.5 * 2**-22 + expected.abs() * rounding + 1e-30
    assert (found.double() - expected).abs().le(bound).all()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_right(dtype, shape):
    weight = drawn(*shape, dtype=dtype)
    for rows in ROWS:
        x = drawn(rows, shape[1], dtype=dtype, seed=rows)
        bias = drawn(shape[0], dtype=dtype, seed=7) if rows % 2 else None
        assert_close(linear(x, weight, bias), x, weight, bias)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype, shape):
    weight, x = drawn(*shape, dtype=dtype), drawn(max(ROWS), shape[1], dtype=dtype, seed=1)
    alone = torch.cat([linear(row[None], weight) for row in x])
    for rows in ROWS:
        assert torch.equal(linear(x[:rows], weight), alone[:rows])
        assert torch.equal(linear(x[-rows:], weight), alone[-rows:])


@needs_kernels
def test_leading_dimensions_strides_and_no_rows():
    weight = drawn(32, 8, dtype=torch.float32)
    x = drawn(3, 16, 8, dtype=torch.float32)[:, ::2]
    assert_close(linear(x, weight), x, weight)
    assert linear(x[:0], weight).shape == (0, 8, 32)


@needs_kernels
def test_values_that_are_no_numbers_stay_so():
    for dtype in DTYPES:
        x = drawn(3, 8, dtype=dtype)
        x[1, 2], x[2, 3] = float("nan"), float("inf")
        found = linear(x, torch.ones(16, 8, dtype=dtype))
        assert found[0].isfinite().all() and found[1].isnan().all() and (found[2] == float("inf")).all()


@needs_kernels
def test_shapes_and_dtypes_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="makes no whole panels"):
        linear(torch.ones(1, 8), torch.ones(20, 8))
    with pytest.raises(RuntimeError, match="one dtype"):
        linear(torch.ones(1, 8), torch.ones(16, 8, dtype=torch.bfloat16))


PORTABLE = """
import sys, torch
from lookahead_bench.engine.native import build
build.FLAGS = tuple("-march=x86-64-v3" if flag == "-march=native" else flag for flag in build.FLAGS)
from tests.test_native_linear import DTYPES, assert_close, drawn, linear
for dtype in DTYPES:
    for rows in (1, 3, 4, 6, 7, 20):
        weight, x = drawn(48, 70, dtype=dtype), drawn(rows, 70, dtype=dtype, seed=rows)
        found = linear(x, weight)
        assert_close(found, x, weight)
        assert torch.equal(found[-1:], linear(x[-1:], weight))
print("right")
"""


@needs_kernels
def test_the_same_without_avx512(tmp_path):
    """Built for any x86-64 processor of the last ten years, in a process of its own: ops are registered once."""
    environment = os.environ | {"LOOKAHEAD_BENCH_CACHE": str(tmp_path)}
    child = subprocess.run([sys.executable, "-c", PORTABLE], env=environment, capture_output=True, text=True)
    assert child.stdout.strip() == "right", child.stderr


def test_without_a_compiler_vllms_kernels_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    build.can_build.cache_clear()
    try:
        assert settings.uses_native(None) is False
        assert settings.uses_native(False) is False
        with pytest.raises(ConfigError, match="engine.native_kernels.*True.*false or null here"):
            settings.uses_native(True)
    finally:
        build.can_build.cache_clear()


def test_a_compiler_that_fails_counts_as_none(monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    build.can_build.cache_clear()
    try:
        assert settings.uses_native(None) is False
    finally:
        build.can_build.cache_clear()


@needs_kernels
@pytest.mark.parametrize("pays", [True, False])
def test_unasked_the_kernels_are_used_only_where_they_pay(monkeypatch, pays):
    monkeypatch.setattr(build, "pays", lambda: pays)
    assert [settings.uses_native(asked) for asked in (None, True, False)] == [pays, True, False]
