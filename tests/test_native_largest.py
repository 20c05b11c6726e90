"""The few largest logits of a row: what a stable sort says, ties and all."""

from __future__ import annotations

import pytest
import torch

from lookahead_bench.engine.native import build

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not build.can_build(), reason="no C++ compiler for the kernels here"),
]


def largest(logits, k):
    from lookahead_bench.engine.native.library import load

    load()
    return torch.ops.lookahead_bench.largest(logits, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [5, 255, 256, 300, 1031, 49152])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_first_of_equals_comes_first(dtype, columns, k):
    generator = torch.Generator().manual_seed(columns + k)
    # Few different values in the second half of the rows: nearly every one is tied.
    smooth = torch.randn(6, columns, generator=generator)
    logits = torch.cat([smooth, torch.randint(-2, 3, (6, columns), generator=generator).float()]).to(dtype)
    expected = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(largest(logits, k), expected)
    # A view of wider rows, as a padded vocabulary gives.
    wide = torch.cat([logits, torch.full((12, 64), 99.0, dtype=dtype)], dim=1)
    assert torch.equal(largest(wide[:, :columns], k), expected)


def test_barred_tokens_and_nan_come_last():
    logits = torch.full((1, 600), float("-inf"))
    logits[0, 0] = float("nan")
    logits[0, [400, 599]] = torch.tensor([1.0, 2.0])
    assert largest(logits, 2).tolist() == [[599, 400]]


def test_bad_arguments_are_refused():
    with pytest.raises(RuntimeError, match="k must be 1 to 4, not 5"):
        largest(torch.zeros(1, 4), 5)
    with pytest.raises(RuntimeError, match="float32 and bfloat16"):
        largest(torch.zeros(1, 4, dtype=torch.float64), 1)
