"""A suffix automaton: all substrings of a growing text with their counts, in linear time and space.

Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text".
State: at most two automaton states per token of the text.
"""

from __future__ import annotations

_MOST_LINKS = 64
"""Suffixes of the text whose counts a new token raises; only text of one short period has more."""


class SuffixAutomaton:
    """All substrings of a growing text, with how often each occurred.

    State 0 is the empty string. A state stands for substrings that end at the same places:
    ``length`` of the longest, ``link`` to the state of the longest suffix that ends at more places.
    """

    __slots__ = ("following", "link", "length", "count", "match", "matched", "_whole")

    def __init__(self) -> None:
        self.following: list[dict[int, int]] = [{}]
        self.link, self.length, self.count = [-1], [0], [0]
        self._whole = 0
        # The longest suffix of the text that occurred before: its state and its length.
        self.match, self.matched = 0, 0

    def append(self, token: int) -> None:
        """Lengthen the text by ``token``."""
        self._follow_match(token)
        new = self._state({}, self.length[self._whole] + 1, 0, 0)
        state = self._whole
        while state != -1 and token not in self.following[state]:
            self.following[state][token] = new
            state = self.link[state]
        if state != -1:
            self.link[new] = self._split(state, token)
        self._whole = new
        for _ in range(_MOST_LINKS):
            if new == 0:
                break
            self.count[new] += 1
            new = self.link[new]
        # A split may have moved the match to the state of a longer string.
        while self.match and self.length[self.link[self.match]] >= self.matched:
            self.match = self.link[self.match]

    def _follow_match(self, token: int) -> None:
        while self.match and token not in self.following[self.match]:
            self.match = self.link[self.match]
            self.matched = self.length[self.match]
        if token in self.following[self.match]:
            self.match = self.following[self.match][token]
            self.matched += 1

    def _state(self, following: dict[int, int], length: int, link: int, count: int) -> int:
        self.following.append(following)
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        return len(self.length) - 1

    def _split(self, state: int, token: int) -> int:
        """The state of the longest string of ``state`` with ``token``, split off if it has longer ones."""
        target = self.following[state][token]
        if self.length[target] == self.length[state] + 1:
            return target
        clone = self._state(
            dict(self.following[target]), self.length[state] + 1, self.link[target], self.count[target]
        )
        self.link[target] = clone
        while state != -1 and self.following[state].get(token) == target:
            self.following[state][token] = clone
            state = self.link[state]
        return clone
