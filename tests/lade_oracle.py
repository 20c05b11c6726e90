"""The authors' lookahead decoding in plain lists, as the reference for ``variant=official``: no tree, no sharing of nodes.

What it follows is ``jacobi_greedy_search_multilevel`` of github.com/hao-ai-lab/LookaheadDecoding, commit eed010d.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lookahead_bench.simulate import Target


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass.

    Attributes:
        emitted: the tokens that it gave.
        window: what each of the window's tokens sees below the last token, itself included.
        guesses: the n-grams that were verified, oldest first.
    """

    emitted: list[int]
    window: list[tuple[int, ...]]
    guesses: list[tuple[int, ...]]


def lookahead(
    target: Target,
    prompt: Sequence[int],
    new_tokens: int,
    *,
    window: int,
    ngram: int,
    branches: int,
    pool_from_prompt: bool,
    seed: int,
    window_in_prefill: bool,
) -> list[Pass]:
    """The passes until ``new_tokens`` tokens are out, the prefill's first.

    Args:
        window_in_prefill: whether the first pass carries the window, as the authors' does. Else the window begins
            with the second, and all else stays where it was.
    """
    draw = random.Random(seed)
    text, history = list(prompt), list(prompt)
    levels: list[list[int] | None] = [[draw.choice(prompt) for _ in range(window + ngram - 3)]]
    levels += [None] * (ngram - 2)
    pool: dict[int, list[tuple[int, ...]]] = {}

    def remember(tokens: Sequence[int]) -> None:
        key, *value = tokens
        entries = pool.setdefault(key, [])
        if tuple(value) in entries:
            entries.remove(tuple(value))
        elif len(entries) == branches:
            entries.pop(0)
        entries.append(tuple(value))

    if pool_from_prompt:
        for start in range(len(prompt) - ngram + 1):
            remember(prompt[start : start + ngram])

    passes: list[Pass] = []
    while len(text) - len(prompt) < new_tokens:
        last = text[-1]
        has_window = bool(passes) or window_in_prefill
        filled = [level for level in levels if level is not None] if has_window else []
        # Column 0 of level 0 is the last token, so level 0 has one column less than the rows show.
        rows = [[last, *filled[0]], *filled[1:]] if filled else []
        seen = [
            (*rows[0][1 : column + 1], *(rows[above][column] for above in range(1, level + 1)))
            for level, row in enumerate(rows)
            for column in range(len(row))
            if level or column
        ]
        guesses = list(pool.get(last, [])) if len(passes) >= ngram - 2 else []

        first = target(text)
        hits = [first]
        for guess in guesses:
            correct = [first, *(target([*text, *guess[: size + 1]]) for size in range(len(guess)))]
            matched = 0
            # The index at which the comparison stops, also when nothing stopped it.
            for matched in range(len(guess)):
                if guess[matched] != correct[matched]:
                    break
            if matched > len(hits) - 1:
                hits = correct[: matched + 1]
        passes.append(Pass(hits, seen, guesses))

        if len(filled) == 1 and ngram > 2 and levels[1] is None:
            results = [target([*text, *levels[0][: column + 1]]) for column in range(len(levels[0]))]
            levels[0], levels[1] = levels[0][1:], results
        elif filled:
            width = len(rows[-1])
            results = [target([*text, *path]) for path in seen[len(seen) - width :]]
            if None in levels:
                depth = len(filled)
                levels[:depth] = [level[1:] for level in filled]
                levels[depth] = results[1:]
            else:
                for column in range(window):
                    remember([rows[0][column], *(row[column] for row in rows[1:]), results[column]])
                levels = [rows[1][1:], *rows[2:], results]

        text += hits
        for _ in hits:
            history.append(hits[-1])
            if pool_from_prompt and len(history) >= ngram:
                remember(history[-ngram:])
    return passes
