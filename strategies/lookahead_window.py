"""The window of lookahead decoding: columns of tokens ahead, Jacobi trajectories that every pass extends by one.

Source: Fu et al. 2024, arXiv 2402.02057, section 3.2. State: at most W + N - 2 columns of N-1 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lookahead_bench.verify import NO_CHOICE
from strategies.ngram_pool import NGramPool


@dataclass(frozen=True, slots=True)
class WindowNodes:
    """The window as part of a tree; node 0 is the tree's root.

    Attributes:
        tokens: token id of each node.
        parents: parent of each node, with a smaller index; -1 for node 0.
        readers: the last node of each column: the choice after it is the column's next token.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    readers: tuple[int, ...]


class Window:
    """W columns of N-1 tokens; column j begins j places after the root, which is the first token of column 0.

    The first tokens of the other columns (level 0) are a chain below the root, and the rest of a column hangs
    below its first. The choice after a column's last token makes it an n-gram and moves it one token on.

    Args:
        width: W.
        levels: N-1, tokens of a column.
        prompt: token ids that the first tokens are drawn from.
        filled: whether the columns begin full, each a piece of the prompt. Else there are N-2 more than W, each a
            token of the prompt, and the first N-2 passes lengthen them and drop one.
        draw: source of randomness.
    """

    __slots__ = ("_width", "_levels", "_prompt", "_draw", "_starts", "_columns")

    def __init__(self, width: int, levels: int, prompt: Sequence[int], filled: bool, draw: random.Random) -> None:
        self._width, self._levels, self._prompt, self._draw = width, levels, tuple(prompt), draw
        self._starts = self._drawn_starts()
        if filled:
            self._columns = [self._drawn_column() for _ in range(width)]
        else:
            ahead = [(draw.choice(self._prompt),) for _ in range(width + levels - 2)]
            self._columns = [(self._prompt[-1],), *ahead]

    def _drawn_starts(self) -> Iterator[int]:
        """Places in the prompt in random order, none twice before all have been drawn."""
        while True:
            yield from self._draw.sample(range(len(self._prompt)), len(self._prompt))

    def _drawn_column(self) -> tuple[int, ...]:
        """Tokens of the prompt that follow each other, from the start again at its end."""
        start = next(self._starts)
        return tuple(self._prompt[(start + level) % len(self._prompt)] for level in range(self._levels))

    @property
    def filling(self) -> bool:
        """Whether the columns are still shorter than N-1 tokens."""
        return len(self._columns[0]) < self._levels

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What the columns right of column 0 have after ``token``.

        It is shorter than an n-gram, but known N-2 passes before one that begins there is complete.
        """
        return [
            column[level:]
            for column in self._columns[1:]
            for level, here in enumerate(column[:-1], start=1)
            if here == token
        ]

    def nodes(self, root: int) -> WindowNodes:
        """The window below ``root``, column by column."""
        tokens, parents, readers = [root], [-1], []

        def add(parent: int, token: int) -> int:
            tokens.append(token)
            parents.append(parent)
            return len(tokens) - 1

        first = 0
        for index, column in enumerate(self._columns):
            if index:
                first = add(first, column[0])
            last = first
            for token in column[1:]:
                last = add(last, token)
            readers.append(last)
        return WindowNodes(tuple(tokens), tuple(parents), tuple(readers))

    def advance(self, root: int, new: Sequence[int], pool: NGramPool) -> None:
        """Move every column on by the choice after it; a full one's n-gram goes to ``pool``.

        Args:
            root: the root of the pass.
            new: the choice after each column; where it is NO_CHOICE the column stays (while the window is
                filling, all of it).
        """
        columns = [(root, *self._columns[0][1:]), *self._columns[1:]]
        if self.filling:
            if NO_CHOICE not in new[1:]:
                self._columns = [(*column, token) for column, token in zip(columns[1:], new[1:], strict=True)]
            return
        for index, token in enumerate(new):
            if token != NO_CHOICE:
                key, *continuation = columns[index]
                columns[index] = (*continuation, token)
                pool.add(key, columns[index])
        self._columns = columns

    def realign(self, places: int, pool: NGramPool) -> None:
        """Drop ``places`` columns on the left; new ones on the right hold what followed the last one's first token."""
        if self.filling:
            return
        kept = self._columns[places:]
        while len(kept) < self._width:
            known = pool.newest_first(kept[-1][0]) if kept else ()
            kept.append(known[0] if known else self._drawn_column())
        self._columns = kept
