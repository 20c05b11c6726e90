"""What a request's strategy keeps is bounded, as its module's docstring says, and is its own."""

from __future__ import annotations

import random

import pytest

from lookahead_bench.strategy import Step, make_strategy
from lookahead_bench.tree import TokenTree

pytestmark = pytest.mark.unit

TOKENS = 20_000
VOCABULARY = 50_000


@pytest.fixture(scope="module")
def text() -> list[int]:
    """Random tokens: nothing repeats for long, so that whatever is kept per new string is kept."""
    draw = random.Random(0)
    return [draw.randrange(VOCABULARY) for _ in range(TOKENS)]


def fed(name: str, text: list[int]):
    """A strategy that has seen ``text``, token by token, and its target's rankings."""
    method = make_strategy(name)
    method.begin(text[:1])
    for last, token in zip(text, text[1:]):
        ranked = tuple((token + rank) % VOCABULARY for rank in range(method.wants_top_k))
        method.observe(Step(TokenTree.root(last), (token,), (), (token,), (ranked,) if ranked else None))
    return method


def test_suffix_keeps_two_states_per_token_at_most(text):
    automaton = fed("suffix", text)._automaton
    assert TOKENS < len(automaton.length) <= 2 * TOKENS + 1
    # At most 3n - 4 transitions: Blumer et al. 1985.
    assert sum(map(len, automaton.following)) <= 3 * TOKENS


def test_token_recycling_keeps_8_successors_of_8192_tokens_at_most(text):
    ranked = fed("token_recycling", text)._successors._ranked
    assert len(ranked) == 8192
    assert max(map(len, ranked.values())) == 8


def test_prompt_lookup_keeps_two_entries_per_token_and_suffix_length_at_most(text):
    method = fed("prompt_lookup", text)
    assert method._text == text
    assert len(method._latest) <= 4 * TOKENS
    assert [len(earlier) for earlier in method._earlier] == 4 * [TOKENS]


@pytest.mark.parametrize("name", ["suffix", "token_recycling", "prompt_lookup"])
def test_two_requests_at_once_share_nothing(name):
    period = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    alone = fed(name, period)
    expected = alone.draft(alone.max_drafts)
    one, _ = fed(name, period), fed(name, period[::-1])
    assert one.draft(one.max_drafts) == expected
