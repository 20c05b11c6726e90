"""Token recycling's adaptive tree: the request's own acceptance decides which nodes come first."""

from __future__ import annotations

import pytest

from lookahead_bench.strategy import Step, make_strategy
from lookahead_bench.tree import TokenTree

pytestmark = pytest.mark.unit

ROUND = (1, 2, 3, 4)


def after_rounds(tree: str, rank: int, nodes: int = 4):
    """A strategy for whose text the successor of ``rank`` was always the right one."""
    method = make_strategy("token_recycling", nodes=nodes, depth=3, tree=tree)
    method.begin(ROUND[:1])
    for place in range(80):
        last, token = ROUND[place % 4], ROUND[(place + 1) % 4]
        ranked = tuple(token if other == rank else 100 + other for other in range(8))
        method.observe(Step(TokenTree.root(last), (token,), (), (token,), (ranked,)))
    return method


def test_the_rank_that_was_right_is_drafted_first():
    """Only the first level was seen; the root is token 1, after which 2 came each time."""
    assert after_rounds("adaptive", rank=2).draft(1).tokens == (1, 2)
    assert after_rounds("static", rank=2).draft(1).tokens == (1, 100)


def test_a_small_static_tree_never_reaches_that_rank():
    tree = after_rounds("adaptive", rank=2).draft(4)
    assert tree.tokens[1] == 2
    assert 2 not in after_rounds("static", rank=2, nodes=2).draft(2).tokens


def test_a_new_request_starts_from_the_assumed_acceptance():
    after_rounds("adaptive", rank=2)
    method = make_strategy("token_recycling", nodes=1, depth=1, tree="adaptive")
    method.begin((7, 8, 7, 9, 7))
    assert method.draft(1).tokens == (7, 9)
