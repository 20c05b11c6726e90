"""Decoding without a model, to try a strategy: targets that are plain functions of the context, and the loop around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from lookahead_bench.strategy import Step, Strategy
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, verify

Target = Callable[[Sequence[int]], int]
"""The token that the target chooses after a context."""


def hash_target(vocabulary: int, memory: int) -> Target:
    """The next token is a hash of the last ``memory`` tokens."""
    return lambda context: hash(tuple(context[-memory:])) % vocabulary


def periodic_target(period: Sequence[int]) -> Target:
    """Repeats ``period`` whatever it is given: the next token depends on the position alone."""
    return lambda context: period[len(context) % len(period)]


def stored_target(text: Sequence[int]) -> Target:
    """The next token of ``text``; NO_CHOICE after any other context, where a stored text says nothing."""
    text = list(text)

    def target(context: Sequence[int]) -> int:
        size = len(context)
        return text[size] if size < len(text) and text[:size] == list(context) else NO_CHOICE

    return target


def greedy(target: Target, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Plain decoding."""
    text = list(prompt)
    for _ in range(new_tokens):
        text.append(target(text))
    return text[len(prompt) :]


def target_step(
    target: Target, text: Sequence[int], tree: TokenTree, vocabulary: int, wants_top_k: int
) -> Step:
    """Verify ``tree``, whose root is the last of ``text``."""
    choices, top_k = [], []
    for node in range(len(tree)):
        if tree.wants_logits[node]:
            context = [*text, *(tree.tokens[above] for above in tree.path(node))]
            choice = target(context)
            choices.append(choice)
            top_k.append(tuple((choice + rank) % vocabulary for rank in range(wants_top_k)))
        else:
            choices.append(NO_CHOICE)
            top_k.append(())
    verdict = verify(tree, choices)
    ranked = tuple(top_k) if wants_top_k else None
    return Step(tree, tuple(choices), verdict.path, verdict.tokens, ranked)


def replay(strategy: Strategy, prompt: Sequence[int], output: Sequence[int]) -> int:
    """Passes after the prefill that a strategy takes to a stored output, against which its drafts are held.

    No model is needed. A strategy that learns from emitted tokens alone takes as many with the model; one that learns from
    the target's choices beside the output as well does not see them here.

    Raises:
        ValueError: the strategy wants the target's rankings, which no output has.
    """
    if strategy.wants_top_k:
        raise ValueError("the strategy wants the target's rankings, which a stored output does not have")
    _, drafts = decode(strategy, stored_target([*prompt, *output]), prompt, len(output), 0)
    return len(drafts)


def decode(
    strategy: Strategy,
    target: Target,
    prompt: Sequence[int],
    new_tokens: int,
    vocabulary: int,
    disturb: random.Random | None = None,
) -> tuple[list[int], list[TokenTree]]:
    """Decode with ``strategy`` as an engine does; return the output and the drafts.

    With ``disturb``, drafts are cut at random or not verified at all, as a scheduler may do, and
    budgets vary.
    """
    text = list(prompt)
    strategy.begin(tuple(prompt))
    drafts = []
    root = TokenTree.root(prompt[-1])
    step = target_step(target, text, root, vocabulary, strategy.wants_top_k)
    text += step.emitted
    strategy.observe(step)
    while len(text) - len(prompt) < new_tokens:
        budget = strategy.max_drafts if disturb is None else disturb.randint(0, strategy.max_drafts)
        tree = strategy.draft(budget)
        assert tree.tokens[0] == text[-1], "a draft's root is the last accepted token"
        assert tree.num_drafts <= budget
        drafts.append(tree)
        if disturb is not None:
            tree = tree.prefix(disturb.choice([1, len(tree), disturb.randint(1, len(tree))]))
        step = target_step(target, text, tree, vocabulary, strategy.wants_top_k)
        text += step.emitted
        strategy.observe(step)
    return text[len(prompt) : len(prompt) + new_tokens], drafts
