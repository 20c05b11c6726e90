"""The token tree: order, mask, prefixes, and how a builder merges and cuts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead_bench.tree import TokenTree, TreeBuilder

pytestmark = pytest.mark.unit


@st.composite
def trees(draw, largest: int = 14) -> TokenTree:
    """Any tree, siblings with equal tokens included."""
    size = draw(st.integers(1, largest))
    parents = (-1, *(draw(st.integers(0, node - 1)) for node in range(1, size)))
    tokens = tuple(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    flags = st.lists(st.booleans(), min_size=size - 1, max_size=size - 1)
    return TokenTree(tokens, parents, (True, *draw(flags)), (True, *draw(flags)))


def ancestors(tree: TokenTree, node: int) -> set[int]:
    found = {node}
    while node > 0:
        node = tree.parents[node]
        found.add(node)
    return found


@given(trees())
def test_the_mask_is_ancestors_and_self(tree):
    expected = np.zeros((len(tree), len(tree)), dtype=bool)
    for node in range(len(tree)):
        expected[node, list(ancestors(tree, node))] = True
    assert (tree.mask() == expected).all()


@given(trees())
def test_depth_and_path_count_the_ancestors(tree):
    for node in range(len(tree)):
        assert tree.depths[node] == len(ancestors(tree, node)) - 1 == len(tree.path(node))
        assert set(tree.path(node)) | {0} == ancestors(tree, node)


@given(trees(), st.integers(1, 20))
def test_any_prefix_of_a_tree_is_a_tree_with_the_same_rows(tree, size):
    cut = tree.prefix(size)
    kept = min(size, len(tree))
    assert len(cut) == kept and cut.num_drafts == kept - 1
    assert (cut.mask() == tree.mask()[:kept, :kept]).all()
    assert cut.wants_logits == tree.wants_logits[:kept]
    assert cut.may_accept == tree.may_accept[:kept]


@given(trees())
def test_leaves_are_the_nodes_without_children(tree):
    assert set(tree.leaves()) == {node for node in range(len(tree)) if node not in tree.parents}


@pytest.mark.parametrize(
    ("tokens", "parents", "wants"),
    [
        ((), (), ()),
        ((1, 2), (-1,), (True, True)),
        ((1,), (0,), (True,)),
        ((1,), (-1,), (False,)),
        ((1, 2), (-1, 1), (True, True)),
        ((1, 2), (-1, -1), (True, True)),
        ((1, 2, 3), (-1, 2, 0), (True, True, True)),
    ],
)
def test_what_is_no_tree_is_refused(tokens, parents, wants):
    with pytest.raises(ValueError):
        TokenTree(tokens, parents, wants)


@pytest.mark.parametrize("accept", [(True,), (False, True), (True, True, True)])
def test_the_root_is_accepted_and_every_node_says_whether_it_may_be(accept):
    with pytest.raises(ValueError):
        TokenTree((1, 2), (-1, 0), (True, True), accept)


def test_a_node_may_be_accepted_unless_it_says_otherwise():
    assert TokenTree((1, 2), (-1, 0), (True, True)).may_accept == (True, True)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8), st.integers(0, 25)
)
def test_a_builder_makes_the_trie_of_its_chains_as_far_as_the_budget_goes(chains, budget):
    builder = TreeBuilder(9, budget)
    for chain in chains:
        builder.add_chain(0, chain)
    tree = builder.build()
    drafted = [tuple(tree.tokens[node] for node in tree.path(node)) for node in range(1, len(tree))]
    prefixes = list(
        dict.fromkeys(tuple(chain[:end]) for chain in chains for end in range(1, len(chain) + 1))
    )
    assert len(set(drafted)) == len(drafted)
    assert set(drafted) <= set(prefixes)
    assert len(drafted) == min(budget, len(prefixes))
    assert builder.room == budget - len(drafted)


@pytest.mark.parametrize("flag", ["wants_logits", "may_accept"])
def test_a_shared_node_has_a_flag_if_one_user_sets_it(flag):
    builder = TreeBuilder(9, 10)
    first = builder.add(0, 5, **{flag: False})
    assert getattr(builder.build(), flag) == (True, False)
    assert builder.add(0, 5, **{flag: True}) == first
    assert builder.add_chain(0, [5], **{flag: False}) == first
    assert getattr(builder.build(), flag) == (True, True)


def test_below_a_dropped_node_nothing_is_added():
    builder = TreeBuilder(9, 1)
    assert builder.add(0, 1) == 1
    assert builder.add(0, 2) == -1
    assert builder.add(-1, 3) == -1
    assert builder.add_chain(0, [1, 4]) == -1
    assert builder.build().tokens == (9, 1)
