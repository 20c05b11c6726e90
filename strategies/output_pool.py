"""A pool of earlier requests' outputs, for a method that may draft from them.

Source: Oliaro et al. 2024, "SuffixDecoding", arXiv 2411.04975, section 4: its global suffix tree over earlier outputs.
State: two generations of outputs with at most 32,768 tokens each; when the younger one is full the older one
goes. Two automaton states per token at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategies.suffix_automaton import SuffixAutomaton

GENERATION_TOKENS = 32_768
"""Tokens of one generation at most, separators among them: what is kept is half as much to all of it, twice."""
SEPARATOR = -1
"""Stands behind each output, so that no string runs from one into the next. It is never a token."""


class OutputPool:
    """Outputs of finished requests, the latest ones.

    Attributes:
        generations: automata over the outputs, the younger one first.
    """

    __slots__ = ("generations", "_room")

    def __init__(self) -> None:
        self.generations: tuple[SuffixAutomaton, ...] = (SuffixAutomaton(),)
        self._room = GENERATION_TOKENS

    def add(self, output: Sequence[int]) -> None:
        """Keep an output; of one that is longer than a generation its end."""
        output = output[max(0, len(output) - (GENERATION_TOKENS - 1)) :]
        if len(output) + 1 > self._room:
            self.generations = (SuffixAutomaton(), self.generations[0])
            self._room = GENERATION_TOKENS
        for token in (*output, SEPARATOR):
            self.generations[0].append(token)
        self._room -= len(output) + 1


class Reader:
    """Where the end of a text stands in an automaton over other texts, which may grow meanwhile.

    Attributes:
        automaton: what is read.
        match: state of the longest end of the text that occurs there; ``matched``: its length.
    """

    __slots__ = ("automaton", "match", "matched")

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self.match = self.matched = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Lengthen the text by ``tokens``."""
        self.settle()
        following, link, length = self.automaton.following, self.automaton.link, self.automaton.length
        for token in tokens:
            while self.match and token not in following[self.match]:
                self.match = link[self.match]
                self.matched = length[self.match]
            if token in following[self.match]:
                self.match = following[self.match][token]
                self.matched += 1

    def settle(self) -> None:
        """Find the match again if the automaton has grown: its state may have been split."""
        link, length = self.automaton.link, self.automaton.length
        while self.match and length[link[self.match]] >= self.matched:
            self.match = link[self.match]
