"""Adaptive drafting: its estimates, its cost curve and what it decides by them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead_bench.simulate import decode, hash_target, periodic_target
from lookahead_bench.strategy import Step, make_strategy
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, verify
from strategies.acceptance import Acceptance, Candidate, Kind
from strategies.cost_curve import DEFAULT_COST, CostCurve
from strategies.trajectory import Trajectory

pytestmark = pytest.mark.unit

STEEP = [[1, 1.0], [2, 3.0]]
FLAT = [[1, 1.0], [2, 1.0]]


def test_the_curve_goes_through_its_points_and_on_as_before_the_last():
    curve = CostCurve([[1, 1.0], [3, 1.2], [5, 2.2]], 7)
    assert curve.cost[1:] == pytest.approx([1.0, 1.1, 1.2, 1.7, 2.2, 2.7, 3.2, 3.7])


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 3)), min_size=1, max_size=5))
def test_the_least_cost_of_a_further_node_is_a_bound(steps):
    nodes = itertools.accumulate((step for step, _ in steps), initial=1)
    costs = itertools.accumulate((rise for _, rise in steps), initial=1.0)
    curve = CostCurve(list(zip(nodes, costs)), 20)
    for size in range(1, 20):
        further = [(curve.cost[more] - curve.cost[size]) / (more - size) for more in range(size + 1, 21)]
        assert curve.least[size] <= min(further) + 1e-9


def test_estimates_follow_what_was_right_and_stay_probabilities():
    good, bad = Kind(match=0, share=0), Kind(rank=0)
    acceptance = Acceptance()
    before = acceptance.of(good), acceptance.of(bad)
    for _ in range(200):
        acceptance.observe([Candidate(7, good), Candidate(8, bad)], 7)
    assert before[0] < 0.9 < acceptance.of(good) <= 1
    assert 0 <= acceptance.of(bad) < before[1] / 4


def test_a_request_without_luck_lowers_kinds_not_yet_seen():
    acceptance, unseen = Acceptance(), Kind(match=3, share=0, rank=1)
    before = acceptance.of(unseen)
    for _ in range(20):
        acceptance.observe([Candidate(1, Kind(match=0, share=0))], 2)
    assert acceptance.of(unseen) < 0.7 * before


def pass_over(tree, choices) -> Step:
    """What a strategy observes of a pass with these choices."""
    verdict = verify(tree, choices)
    return Step(tree, tuple(choices), verdict.path, verdict.tokens)


def test_choices_after_rejected_nodes_are_guesses_at_what_follows_the_bonus_token():
    # Root 1; 2 is accepted and 9 comes after it, where 3 and 5 were drafted; 4 is below 3.
    tree = TokenTree((1, 2, 3, 4, 5, 6), (-1, 0, 1, 2, 1, 0), (True,) * 6)
    trajectory = Trajectory()
    trajectory.learn(pass_over(tree, [2, 9, 7, 8, 11, 12]))
    assert trajectory.guesses(trajectory.start) == [7, 11]
    assert trajectory.guesses(trajectory.follow(trajectory.start, 7)) == [8]
    assert trajectory.follow(trajectory.start, 11) == trajectory.follow(trajectory.start, 13) == ()
    trajectory.learn(pass_over(tree, [2, 9, NO_CHOICE, 8, NO_CHOICE, 12]))
    assert trajectory.start == ()
    trajectory.learn(pass_over(tree, [2, 3, 4, 10, 11, 12]))
    assert trajectory.start == ()


def test_a_guess_is_drafted_where_nothing_else_is_known():
    method = make_strategy("adaptive", cost=FLAT, max_drafts=6)
    method.begin([1, 2, 1])
    method.observe(Step(TokenTree.root(1), (2,), (), (2,), ((),)))
    tree = method.draft(6)
    assert tree.tokens[1] == 1
    choices = [30, 31, 32, 33, 34, 35, 36][: len(tree)]
    method.observe(pass_over(tree, choices))
    # 30 came instead of what was drafted; after that, where nothing of 30 is known, 31 was chosen.
    assert method.draft(6).tokens[:2] == (30, 31)


def test_where_a_node_costs_more_than_it_can_bring_nothing_is_drafted():
    period = [3, 1, 4, 1, 5, 9, 2, 6]
    _, drafts = decode(make_strategy("adaptive", cost=STEEP), periodic_target(period), period * 3, 40, 10)
    assert {draft.num_drafts for draft in drafts} == {0}


def test_where_nodes_are_free_all_that_may_come_is_drafted():
    period = [3, 1, 4, 1, 5, 9, 2, 6]
    _, drafts = decode(make_strategy("adaptive", cost=FLAT, max_drafts=6), periodic_target(period), period * 3, 40, 10)
    assert drafts[0].num_drafts == 6


@pytest.mark.parametrize("period", [[5], [1, 2, 3]])
def test_a_loop_is_drafted_beyond_the_end_of_the_text(period):
    method = make_strategy("adaptive", cost=FLAT, max_drafts=12)
    method.begin(period * 5)
    assert len(method.draft(12)) == 13
    _, drafts = decode(make_strategy("adaptive"), periodic_target(period), period * 5, 60, 10)
    assert len(drafts) < 12


def observed(method, text, top_k) -> None:
    """Let ``method`` see ``text`` come out token by token, as if nothing were drafted."""
    for last, token in zip(text, text[1:]):
        method.observe(Step(TokenTree.root(last), (token,), (), (token,), (top_k(token),)))


def test_what_is_never_right_is_soon_not_drafted_and_a_change_is_noticed_without_a_draft():
    method = make_strategy("adaptive")
    method.begin([1, 2, 3, 4] * 5 + [1])
    assert method.draft(32).num_drafts >= 4
    # Every token comes back, each time before another: all candidates are wrong.
    order = [token for gap in range(1, 12) for start in range(23) for token in (start, start + gap)]
    observed(method, [1, *order], lambda token: (50, 51, 52, 53))
    assert method.draft(32).num_drafts <= 1
    observed(method, [order[-1], *[60, 61, 62, 63, 64, 65] * 8], lambda token: (60 + (token - 59) % 6,))
    assert method.draft(32).num_drafts >= 4


def test_the_first_drafts_of_a_cut_budget_are_those_of_the_whole():
    method = make_strategy("adaptive")
    decode(method, hash_target(5, 2), [1, 2, 3, 1, 2, 4, 1, 2] * 3, 30, 5)
    whole = method.draft(32)
    cut = method.draft(3)
    assert cut.num_drafts == min(3, whole.num_drafts)
    assert whole.prefix(len(cut)) == cut


def test_the_default_curve_is_one_that_is_accepted():
    assert make_strategy("adaptive", cost=DEFAULT_COST).max_drafts == 32
