"""Lookahead decoding, the better variant: every pass guesses, every verified token is kept.

Source: Fu et al. 2024, arXiv 2402.02057, sections 3.2 to 3.4, with the changes said below.
Parameters: those of ``lookahead``. The window begins full, its columns n-grams of the prompt, so
n-grams are gained from the first step on; a full match keeps its last token and the bonus; guesses
that share a prefix share nodes, with the window too; the window's own tokens are guessed as well.
State per request: the prompt, W(N-1) window tokens and a pool of at most 8192 G n-grams.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from lookahead_bench.strategy import Step
from lookahead_bench.tree import TokenTree, TreeBuilder
from lookahead_bench.verify import NO_CHOICE
from strategies.ngram_pool import NGramPool


class ImprovedLookahead:
    """A window of W columns with N-1 tokens each, one Jacobi trajectory a column.

    In the tree, the first tokens of columns 1 to W-1 (level 0) are a chain below the root, which is
    the first token of column 0; the other tokens of a column hang below its first. The choice after
    a column's last token makes it an n-gram for the pool and moves the column one token on.

    Args: as ``Lookahead`` has them.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(
        self,
        window: int,
        ngram: int,
        branches: int,
        pool_from_prompt: bool,
        pool_from_output: bool,
        realign: bool,
        seed: int,
    ) -> None:
        self._window, self._ngram, self._branches = window, ngram, branches
        self._pool_from_prompt, self._pool_from_output = pool_from_prompt, pool_from_output
        self._realign = realign
        self._pool = NGramPool(branches)
        self._random = random.Random(seed)
        self.max_drafts = (window + branches) * (ngram - 1) - 1

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._prompt = tuple(prompt_ids)
        self._last = prompt_ids[-1]
        self._recent = self._prompt[-(self._ngram - 1) :]
        self._starts = self._drawn_starts()
        self._columns = [self._drawn_column() for _ in range(self._window)]
        self._drafted: TokenTree | None = None
        self._readers: list[int] = []
        if self._pool_from_prompt:
            self._pool.add_text(self._prompt, self._ngram)

    def _drawn_starts(self) -> Iterator[int]:
        """Places in the prompt in random order, none twice before all have been drawn."""
        while True:
            yield from self._random.sample(range(len(self._prompt)), len(self._prompt))

    def _drawn_column(self) -> tuple[int, ...]:
        """N-1 tokens of the prompt that follow each other, from the start again at its end."""
        start = next(self._starts)
        return tuple(
            self._prompt[(start + level) % len(self._prompt)] for level in range(self._ngram - 1)
        )

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._last, budget)
        for candidate in self._candidates():
            builder.add_chain(0, candidate)
        self._readers = []
        first = 0
        for index, column in enumerate(self._columns):
            if index:
                first = builder.add(first, column[0], wants_logits=len(column) == 1)
            last = builder.add_chain(first, column[1:-1], wants_logits=False)
            if len(column) > 1:
                last = builder.add(last, column[-1])
            self._readers.append(last)
        self._drafted = builder.build()
        return self._drafted

    def _candidates(self) -> list[tuple[int, ...]]:
        """The pool's, newest first; then, up to G in all, what the window has after the root's token.

        The window's are shorter, but known N-2 steps before an n-gram that begins there is complete.
        """
        found = list(self._pool.newest_first(self._last))
        for column in self._columns[1:]:
            for level, token in enumerate(column[:-1], start=1):
                if token == self._last and len(found) < self._branches:
                    found.append(column[level:])
        return found

    def observe(self, step: Step) -> None:
        self._advance(self._new_tokens(step), len(step.emitted))
        text = (*self._recent, *step.emitted)
        if self._pool_from_output:
            self._pool.add_text(text, self._ngram)
        self._recent = text[-(self._ngram - 1) :]
        self._last = step.emitted[-1]
        self._drafted = None

    def _new_tokens(self, step: Step) -> list[int]:
        """The choice after each column, NO_CHOICE where the pass did not verify the column's end."""
        size = len(step.tree)
        if self._drafted is None or step.tree != self._drafted.prefix(size):
            return [NO_CHOICE] * self._window
        return [
            step.choices[node] if 0 <= node < size else NO_CHOICE for node in self._readers
        ]

    def _advance(self, new: Sequence[int], emitted: int) -> None:
        """Move each column with a new token one token on; its n-gram goes to the pool."""
        self._columns[0] = (self._last, *self._columns[0][1:])
        for index, token in enumerate(new):
            if token != NO_CHOICE:
                key, *continuation = self._columns[index]
                self._columns[index] = (*continuation, token)
                self._pool.add(key, self._columns[index])
        if self._realign and self._drafted is not None:
            kept = self._columns[emitted - 1 :]
            while len(kept) < self._window:
                kept.append(self._following_column(kept))
            self._columns = kept

    def _following_column(self, columns: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """A column to the right of ``columns``: what followed the last one's first token before."""
        known = self._pool.newest_first(columns[-1][0]) if columns else ()
        return known[0] if known else self._drawn_column()
