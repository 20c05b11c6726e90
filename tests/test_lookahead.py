"""Lookahead decoding's pool and window, and the texts that the other methods look things up in."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead_bench.strategy import Step, make_strategy
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, verify
from strategies.ngram_pool import NGramPool
from strategies.suffix_automaton import SuffixAutomaton
from strategies.token_recycling import static_tree

pytestmark = pytest.mark.unit


def prefilled(prompt, first, **parameters):
    """A lookahead strategy after a prefill that gave the token ``first``."""
    method = make_strategy("lookahead", **parameters)
    method.begin(prompt)
    method.observe(Step(TokenTree.root(prompt[-1]), (first,), (), (first,)))
    return method


def step_of(tree, choice) -> Step:
    """A pass in which the target chooses ``choice(node)`` wherever logits are wanted."""
    choices = tuple(
        choice(node) if wants else NO_CHOICE for node, wants in enumerate(tree.wants_logits)
    )
    verdict = verify(tree, choices)
    return Step(tree, choices, verdict.path, verdict.tokens)


# -- pool -------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 4), st.tuples(st.integers(0, 2), st.integers(0, 2)))),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_the_pool_drops_the_least_recently_used_entry_and_key(added, branches, keys):
    pool = NGramPool(branches, keys)
    model: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()
    for key, continuation in added:
        pool.add(key, continuation)
        entries = [entry for entry in model.pop(key, []) if entry != continuation]
        model[key] = [*entries, continuation][-branches:]
        while len(model) > keys:
            model.popitem(last=False)
    assert len(pool) == len(model)
    for key in range(5):
        assert pool.oldest_first(key) == tuple(model.get(key, ()))
        assert pool.newest_first(key) == pool.oldest_first(key)[::-1]


def test_a_text_gives_all_its_ngrams_and_a_short_one_none():
    pool = NGramPool(3)
    pool.add_text((1, 2), 3)
    assert len(pool) == 0
    pool.add_text((1, 2, 3, 1, 4), 3)
    assert pool.newest_first(1) == ((2, 3),)
    assert pool.newest_first(2) == ((3, 1),)
    assert pool.newest_first(3) == ((1, 4),)


# -- window -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["improved", "official"])
@pytest.mark.parametrize(("window", "ngram"), [(1, 3), (4, 3), (5, 5), (2, 6)])
def test_the_window_is_a_chain_with_a_column_below_each_token(variant, window, ngram):
    prompt = tuple(range(100, 160))  # no token twice, so nothing merges
    method = prefilled(prompt, 7, window=window, ngram=ngram, pool_from_prompt=False, variant=variant)
    for token in range(ngram):  # the official window fills itself first
        tree = method.draft(method.max_drafts)
        step = step_of(tree, lambda node, base=1000 * (token + 1): base + node)
        method.observe(step)
    tree = method.draft(method.max_drafts)
    levels = Counter(tree.depths)
    assert len(tree) == window * (ngram - 1)
    children = Counter(tree.parents[1:])
    readers = [node for node in range(1, len(tree)) if tree.wants_logits[node]]
    assert len(readers) == window
    heads = sorted(tree.depths[node] for node in readers)
    assert heads == [column + ngram - 2 for column in range(window)]
    # Column j hangs below level-0 token j: the root and the chain have it beside the next of them.
    assert children[0] == (2 if window > 1 else 1)
    assert max(levels) == window + ngram - 3
    for reader in readers:
        assert reader not in tree.parents[1:]


def test_with_two_levels_less_the_chain_itself_is_read():
    method = prefilled(tuple(range(20)), 30, window=5, ngram=2, pool_from_prompt=False)
    tree = method.draft(method.max_drafts)
    assert tree.parents == (-1, 0, 1, 2, 3)
    assert all(tree.wants_logits)


def test_candidates_come_first_newest_first_and_share_prefixes():
    prompt = (9, 1, 2, 3, 9, 1, 2, 4, 9, 5, 6, 7, 0)
    method = prefilled(prompt, 9, window=1, ngram=4, branches=2)
    tree = method.draft(method.max_drafts)
    assert tree.tokens[1:4] == (5, 6, 7)
    assert tree.tokens[4:7] == (1, 2, 4)
    assert tree.parents[1:7] == (0, 1, 2, 0, 4, 5)
    assert all(tree.wants_logits[:7])
    wider = prefilled(prompt, 9, window=1, ngram=4, branches=3).draft(100)
    assert wider.tokens[7] == 3 and wider.parents[7] == 5


def test_an_ngram_of_the_window_is_drafted_after_its_first_token():
    method = prefilled((1, 2, 3, 4, 5, 6), 8, window=2, ngram=3, pool_from_prompt=False)
    tree = method.draft(method.max_drafts)
    chain = next(node for node in range(1, len(tree)) if node in tree.parents)
    column = tree.parents.index(chain)
    key, second = tree.tokens[chain], tree.tokens[column]
    # The target goes on to the key, and says 50 after the column that begins with it.
    method.observe(step_of(tree, lambda node: {0: key, column: 50}.get(node, 60)))
    following = method.draft(method.max_drafts)
    assert following.tokens[:3] == (key, second, 50)
    assert following.wants_logits[:3] == (True, True, True)


def test_what_the_window_has_after_a_token_is_drafted_where_the_pool_leaves_room():
    def drafted(first, budget):
        settings = {"window": 2, "ngram": 4, "branches": 1, "pool_from_prompt": False}
        return prefilled(tuple(range(100, 200)), first, **settings).draft(budget)

    # In order: the root, two tokens of column 0, then all three of column 1.
    column = drafted(7, 5).tokens[3:]
    tree = drafted(column[0], 2)
    assert tree.tokens == column
    assert tree.wants_logits == (True, True, True)


def test_a_column_whose_end_was_cut_stays_and_the_others_move_on():
    method = prefilled(tuple(range(400, 999)), 7, window=3, ngram=3, pool_from_prompt=False)
    whole = method.draft(method.max_drafts)
    # In order: column 0; the first chain token, its column; the second chain token, its column.
    method.observe(step_of(whole.prefix(4), lambda node: 100 + node))
    moved = method.draft(method.max_drafts)
    assert moved.tokens == (100, 101, whole.tokens[3], 103, whole.tokens[4], whole.tokens[5])


def test_prompt_and_output_go_to_the_pool_as_asked():
    def drafted(**which):
        method = prefilled((1, 2, 3, 1, 2), 8, window=1, ngram=3, **which)
        for token in (9, 4, 8):  # the output becomes 8 9 4 8
            tree = method.draft(0)
            method.observe(Step(tree, (token,), (), (token,)))
        return method.draft(2).tokens

    assert drafted(pool_from_prompt=True) == (8, 9, 4)
    assert drafted(pool_from_prompt=False, pool_from_output=True) == (8, 9, 4)
    assert drafted(pool_from_prompt=True, pool_from_output=False)[1:] != (9, 4)
    assert drafted(pool_from_prompt=False)[1:] != (9, 4)


def test_the_pool_of_the_prompt_drafts_from_the_first_step_on():
    tree = prefilled((1, 2, 3, 4, 5), 2, window=1, ngram=3).draft(2)
    assert tree.tokens == (2, 3, 4)


def test_the_official_variant_loses_the_last_token_of_a_full_match():
    def emitted(variant):
        method = prefilled((1, 2, 3, 4, 5) * 3, 1, window=1, ngram=4, variant=variant)
        longest = 0
        for _ in range(12):
            tree = method.draft(method.max_drafts)
            step = step_of(tree, lambda node: tree.tokens[node] % 5 + 1)
            method.observe(step)
            longest = max(longest, len(step.emitted))
        return longest

    assert emitted("official") == 3
    assert emitted("improved") == 4


# -- suffix automaton and static tree ----------------------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=1, max_size=24))
def test_the_automaton_knows_the_longest_repeated_end_and_counts_what_follows(text):
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)

    def occurrences(part):
        return sum(text[at : at + len(part)] == part for at in range(len(text) - len(part) + 1))

    repeated = [size for size in range(1, len(text)) if occurrences(text[-size:]) > 1]
    assert automaton.matched == max(repeated, default=0)
    if automaton.matched:
        end = text[-automaton.matched :]
        assert automaton.count[automaton.match] == occurrences(end)
        counts = {token: occurrences([*end, token]) for token in range(3)}
        assert {
            token: automaton.count[state]
            for token, state in automaton.following[automaton.match].items()
        } == {token: count for token, count in counts.items() if count}
    assert len(automaton.length) <= 2 * len(text) + 1


@given(st.integers(1, 100), st.integers(1, 10))
def test_the_static_tree_has_parents_first_and_keeps_its_depth(nodes, depth):
    shape = static_tree(nodes, depth)
    assert len(set(shape)) == len(shape) <= nodes
    assert shape[0] == (0, 0)
    levels = [0]
    for node, (parent, rank) in enumerate(shape, start=1):
        assert parent < node and 0 <= rank < 8
        assert rank == 0 or (parent, rank - 1) in shape[: node - 1]
        levels.append(levels[parent] + 1)
    assert max(levels) <= depth
