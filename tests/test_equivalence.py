from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead_bench.equivalence import NEAR_TIE_MARGINS, MarginPass, first_divergence, judge

pytestmark = pytest.mark.unit

tokens = st.lists(st.integers(0, 3), max_size=8)


@given(tokens, tokens)
def test_first_divergence_is_the_length_of_the_common_prefix(left, right):
    index = first_divergence(left, right)
    assert first_divergence(right, left) == index
    if index is None:
        assert left == right
    else:
        assert left[:index] == right[:index]
        assert left[index : index + 1] != right[index : index + 1]


def test_equal_outputs_need_no_margin():
    assert judge([1, 2], [1, 2], "float32").verdict == "identical"


def test_a_difference_stays_open_until_its_margin_is_known():
    found = judge([1, 2, 3], [1, 5, 3], "float32")
    assert (found.verdict, found.first_divergence) == ("unchecked", 1)


def margin_pass(tokens, *, at: int, gaps) -> MarginPass:
    """A pass that is sure of its tokens everywhere but at index ``at``."""
    return MarginPass(tokens, tuple(gaps if place == at else {token: 0.0, 99: 9.0} for place, token in enumerate(tokens)))


@pytest.mark.parametrize("dtype", NEAR_TIE_MARGINS)
def test_the_margin_decides(dtype):
    limit = NEAR_TIE_MARGINS[dtype]
    for margin, verdict in ((0.0, "near_tie"), (limit, "near_tie"), (limit * 1.01, "mismatch")):
        found = judge([1, 2, 3], [1, 5, 3], dtype, margin_pass((1, 2, 3), at=1, gaps={2: 0.0, 5: margin, 7: 9.0}))
        assert (found.verdict, found.first_divergence, found.divergence_margin) == (verdict, 1, margin)
        assert not found.note


@pytest.mark.parametrize("token", [7, 8])
def test_a_token_that_is_none_of_the_close_ones_is_a_mismatch(token):
    """7 is known to be far off, 8 is not among the likeliest at all."""
    found = judge([1, 2, 3], [1, token, 3], "bfloat16", margin_pass((1, 2, 3), at=1, gaps={2: 0.0, 5: 0.1, 7: 9.0}))
    assert (found.verdict, found.divergence_margin) == ("mismatch", 0.1)
    assert found.note == "its token is not one of those that are close there"


def test_the_third_of_three_close_tokens_is_a_near_tie():
    found = judge([1, 2, 3], [1, 7, 3], "bfloat16", margin_pass((1, 2, 3), at=1, gaps={2: 0.0, 5: 0.1, 7: 0.2}))
    assert (found.verdict, found.divergence_margin) == ("near_tie", 0.1)


def test_an_output_that_ends_early_is_a_mismatch_whatever_the_margin():
    found = judge([1, 2, 3], [1, 2], "float32", margin_pass((1, 2, 3), at=2, gaps={3: 0.0, 5: 1e-6}))
    assert (found.verdict, found.first_divergence) == ("mismatch", 2)
    assert found.note


def test_an_output_that_goes_on_is_a_mismatch():
    found = judge([1, 2], [1, 2, 3], "float32", margin_pass((1, 2, 3), at=2, gaps={3: 0.0, 5: 0.0}))
    assert (found.verdict, found.first_divergence, found.divergence_margin) == ("mismatch", 2, None)
    assert found.note


def test_a_margin_from_another_context_proves_nothing():
    found = judge([1, 2, 3, 4], [1, 2, 3, 9], "bfloat16", margin_pass((1, 7, 3, 4), at=3, gaps={4: 0.0, 9: 0.0}))
    assert (found.verdict, found.divergence_margin) == ("mismatch", None)
    assert "token 1" in found.note


def test_plain_decoding_flipping_at_the_very_token_is_no_obstacle():
    found = judge([1, 2, 3], [1, 5, 3], "bfloat16", margin_pass((1, 5, 9), at=1, gaps={2: 0.0, 5: 0.0}))
    assert (found.verdict, found.divergence_margin) == ("near_tie", 0.0)
