"""Official lookahead decoding on the token tree, pass by pass against plain lists, with targets that see what the mask shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_bench.simulate import Target, target_step
from lookahead_bench.strategy import Step, make_strategy
from lookahead_bench.tree import TokenTree
from tests.lade_oracle import lookahead

pytestmark = pytest.mark.unit

VOCABULARY = 7
NEW_TOKENS = 60

sizes = st.fixed_dictionaries(
    {
        "window": st.integers(1, 6),
        "ngram": st.integers(3, 7),
        "branches": st.integers(1, 4),
        "pool_from_prompt": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


def placed_target(memory: int, period: int) -> Target:
    """The next token is a hash of the last ``memory`` tokens and of the position, which repeats after ``period``."""
    return lambda context: hash((len(context) % period, *context[-memory:])) % VOCABULARY


def steps_of(method, target: Target, prompt: Sequence[int], window_in_prefill: bool) -> list[Step]:
    """The passes until NEW_TOKENS tokens are out, the prefill's first."""
    text = list(prompt)
    method.begin(tuple(prompt))
    steps = []
    while len(text) - len(prompt) < NEW_TOKENS:
        drafts = bool(steps) or window_in_prefill
        tree = method.draft(method.max_drafts) if drafts else TokenTree.root(text[-1])
        assert tree.num_drafts <= method.max_drafts
        steps.append(target_step(target, text, tree, VOCABULARY, 0))
        text += steps[-1].emitted
        method.observe(steps[-1])
    return steps


def paths(tree: TokenTree, accepted: bool) -> list[tuple[int, ...]]:
    """What each node below the root sees of the draft, of those that may be accepted or of the others."""
    nodes = [node for node in range(1, len(tree)) if tree.may_accept[node] is accepted]
    return sorted(tuple(tree.tokens[above] for above in tree.path(node)) for node in nodes)


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=25),
    memory=st.integers(1, 3),
    period=st.integers(1, 4),
    parameters=sizes,
    window_in_prefill=st.booleans(),
)
def test_window_guesses_and_emitted_tokens_are_those_of_the_lists(prompt, memory, period, parameters, window_in_prefill):
    target = placed_target(memory, period)
    method = make_strategy("lookahead", variant="official", **parameters)
    ours = steps_of(method, target, prompt, window_in_prefill)
    theirs = lookahead(target, prompt, NEW_TOKENS, window_in_prefill=window_in_prefill, **parameters)
    for step, expected in zip(ours, theirs, strict=True):
        assert list(step.emitted) == expected.emitted
        assert paths(step.tree, accepted=False) == sorted(expected.window)
        # Guesses share nodes here: every start of one is there once.
        starts = {guess[: size + 1] for guess in expected.guesses for size in range(len(guess))}
        assert paths(step.tree, accepted=True) == sorted(starts)


def test_the_lists_emit_up_to_n_minus_1_tokens_a_pass_and_never_n():
    """Against a target that the pool knows by heart."""
    period = [1, 2, 3, 4, 5]
    passes = lookahead(
        lambda context: period[len(context) % 5], period * 4, 40,
        window=3, ngram=4, branches=2, pool_from_prompt=True, seed=0, window_in_prefill=True,
    )
    assert [len(each.emitted) for each in passes[:5]] == [1, 1, 3, 3, 3]
    assert max(len(each.emitted) for each in passes) == 3
    assert [len(each.guesses) > 0 for each in passes[:3]] == [False, False, True]


def test_a_late_window_costs_one_pass_and_guesses_from_the_prompt_are_not_late():
    period = [1, 2, 3, 4, 5]
    method = make_strategy("lookahead", window=3, ngram=5, branches=2, variant="official")
    steps = steps_of(method, lambda context: period[len(context) % 5], period * 4, window_in_prefill=False)
    assert [bool(paths(step.tree, accepted=True)) for step in steps[:5]] == [False, False, False, True, True]
    # One level of W+N-3 tokens first, then k levels of W+N-1-k columns, one of them the root's own.
    assert [len(paths(step.tree, accepted=False)) for step in steps[:6]] == [0, 5, 9, 11, 11, 11]
