"""Lookahead decoding as the authors' own implementation does it, quirks included (greedy search).

Source: github.com/hao-ai-lab/LookaheadDecoding, commit eed010d, ``jacobi_greedy_search_multilevel``.
Parameters: those of ``lookahead``. What differs from the paper, and from the improved variant: the
window is filled for N-2 steps before anything is guessed; the last token of a full match is lost;
the window never realigns; after a step of several tokens the history repeats its last token.
State per request: W(N-1) window tokens and a pool of at most min(vocabulary, prompt + W steps) keys.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.strategy import Step
from lookahead_bench.tree import TokenTree, TreeBuilder
from strategies.ngram_pool import NGramPool


class OfficialLookahead:
    """The official window, pool and order of events on a token tree.

    The last token of a guess does not ask for logits: that is how the last token of a full match
    gets lost. Window and guesses share no nodes, and the window's may not be accepted. One thing is
    not reproduced: guesses that share a prefix share nodes, so passes are smaller.

    The official prefill carries level 0 behind the prompt. ``draft`` gives that tree if it is asked
    before the prefill; where the prefill verifies no tree, the first decoding step carries it.

    Args: as ``Lookahead`` has them, ``ngram`` at least 3.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(
        self, window: int, ngram: int, branches: int, pool_from_prompt: bool, seed: int
    ) -> None:
        self._window, self._ngram = window, ngram
        self._pool_from_text = pool_from_prompt
        self._pool = NGramPool(branches, keys=None)
        self._seed = seed
        filling = max(k * (window + ngram - 1 - k) for k in range(1, ngram - 1))
        self.max_drafts = max((window + branches) * (ngram - 1), filling) - 1

    def begin(self, prompt_ids: Sequence[int]) -> None:
        draw = random.Random(self._seed)
        self._last = prompt_ids[-1]
        self._recent = tuple(prompt_ids[-self._ngram :])
        # Level 0 begins below the root, the other levels with a column below the root itself.
        self._levels = [
            [draw.choice(prompt_ids) for _ in range(self._window + self._ngram - 3)]
        ]
        self._drafted: TokenTree | None = None
        self._readers: list[int] = []
        if self._pool_from_text:
            self._pool.add_text(tuple(prompt_ids), self._ngram)

    @property
    def _filling(self) -> bool:
        return len(self._levels) < self._ngram - 1

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._last, budget)
        if not self._filling:
            for *inner, last in self._pool.oldest_first(self._last):
                node = builder.add_chain(0, inner)
                builder.add(node, last, wants_logits=False)
        guessed = builder.build()
        tokens, parents = list(guessed.tokens), list(guessed.parents)
        wants = list(guessed.wants_logits)

        def add(parent: int, token: int, wants_logits: bool) -> int:
            tokens.append(token)
            parents.append(parent)
            wants.append(wants_logits)
            return len(tokens) - 1

        level_0, *others = self._levels
        tips = [0]
        for token in level_0:
            tips.append(add(tips[-1], token, not others))
        self._readers = tips[1:]
        for depth, level in enumerate(others, start=1):
            tips = [add(tip, token, depth == len(others)) for tip, token in zip(tips, level, strict=True)]
            self._readers = tips
        may_accept = tuple(node < len(guessed) for node in range(len(tokens)))
        self._drafted = TokenTree(tuple(tokens), tuple(parents), tuple(wants), may_accept).prefix(budget + 1)
        return self._drafted

    def observe(self, step: Step) -> None:
        nodes = len(step.choices)
        complete = step.tree is self._drafted or step.tree == self._drafted
        if complete and self._readers[-1] < nodes:
            self._advance([step.choices[node] for node in self._readers])
        if self._pool_from_text:
            for _ in step.emitted:
                self._recent = (*self._recent, step.emitted[-1])[-self._ngram :]
                self._pool.add_text(self._recent, self._ngram)
        self._last = step.emitted[-1]
        self._drafted = None

    def _advance(self, new: list[int]) -> None:
        """Take ``new``, the choices after the last level, into pool and window: one level on."""
        if not self._filling:
            level_0, *others = self._levels
            keys = [self._last, *level_0]
            for key, *continuation in zip(keys, *others, new, strict=True):
                self._pool.add(key, tuple(continuation))
            self._levels = [others[0][1:], *others[1:], new] if others else [new[1:]]
        elif len(self._levels) == 1:
            self._levels = [self._levels[0][1:], new]
        else:
            self._levels = [level[1:] for level in [*self._levels, new]]
