"""Verification against a walk over all paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead_bench.tree import TokenTree, TreeBuilder
from lookahead_bench.verify import NO_CHOICE, Verdict, depth_tried, verify

pytestmark = pytest.mark.unit


@st.composite
def verified_trees(draw) -> tuple[TokenTree, tuple[int, ...]]:
    """A trie and the target's choices, some of them not computed."""
    builder = TreeBuilder(9, draw(st.integers(0, 12)))
    chains = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.booleans())
    for chain, may_accept in draw(st.lists(chains, max_size=6)):
        builder.add_chain(0, chain, may_accept=may_accept)
    tree = builder.build()
    inner = st.lists(
        st.sampled_from([0, 1, 2, 3, NO_CHOICE]), min_size=len(tree) - 1, max_size=len(tree) - 1
    )
    return tree, (draw(st.integers(0, 3)), *draw(inner))


def brute_force(tree: TokenTree, choices: tuple[int, ...]) -> tuple[int, ...]:
    """The longest path whose every token is the choice at its parent, over all paths."""
    best: tuple[int, ...] = ()
    for end in range(len(tree)):
        path = tree.path(end)
        right = all(
            tree.may_accept[node]
            and choices[node] != NO_CHOICE
            and tree.tokens[node] == choices[tree.parents[node]]
            for node in path
        )
        if right and len(path) > len(best):
            best = path
    return best


@given(verified_trees(), st.integers(1, 13))
def test_verification_is_the_longest_right_path_and_its_bonus(case, size):
    tree, choices = case
    for cut in (tree, tree.prefix(size)):
        seen = choices[: len(cut)]
        verdict = verify(cut, seen)
        path = brute_force(cut, seen)
        assert verdict.path == path
        bonus = seen[path[-1] if path else 0]
        assert verdict.tokens == (*(cut.tokens[node] for node in path), bonus)


def test_a_full_match_keeps_its_bonus():
    builder = TreeBuilder(1, 3)
    builder.add_chain(0, [2, 3, 4])
    assert verify(builder.build(), (2, 3, 4, 5)).tokens == (2, 3, 4, 5)


def test_an_empty_tree_emits_the_roots_choice():
    verdict = verify(TokenTree.root(1), (7,))
    assert (verdict.path, verdict.tokens) == ((), (7,))


def test_of_equal_siblings_the_one_with_logits_is_entered():
    tree = TokenTree((1, 2, 2), (-1, 0, 0), (True, False, True))
    assert verify(tree, (2, NO_CHOICE, 3)).path == (2,)


def test_of_equal_siblings_the_one_that_may_be_accepted_is_entered():
    tree = TokenTree((1, 2, 2), (-1, 0, 0), (True,) * 3, (True, False, True))
    assert verify(tree, (2, 3, 4)) == Verdict((2,), (2, 4))
    assert verify(tree.prefix(2), (2, 3)) == Verdict((), (2,))


@pytest.mark.parametrize("choices", [(), (1,), (1, 2, 3), (NO_CHOICE, 1)])
def test_choices_that_do_not_belong_to_the_tree_are_refused(choices):
    with pytest.raises(ValueError):
        verify(TokenTree((1, 2), (-1, 0), (True, True)), choices)


def test_how_far_down_a_draft_was_tried():
    """0 - 1 - 2 - 3 and 0 - 4; node 3 wants no logits, node 4 may not be accepted."""
    tree = TokenTree((9, 1, 2, 3, 4), (-1, 0, 1, 2, 0), (True, True, True, False, True), (True, True, True, True, False))
    for choices, path, depth in [
        ((1, 2, 3, NO_CHOICE, 5), (1, 2), 2),  # the end's only child could not have been entered
        ((1, 7, 3, NO_CHOICE, 5), (1,), 2),
        ((4, 2, 3, NO_CHOICE, 5), (), 1),
    ]:
        assert verify(tree, choices).path == path
        assert depth_tried(tree, choices, path) == depth
    assert depth_tried(TokenTree.root(1), (7,), ()) == 0
