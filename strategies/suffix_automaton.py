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
        # Two thousand of these stand before a first draft: each list is looked up once.
        following, link, length, count = self.following, self.link, self.length, self.count
        match = self.match
        while match and token not in following[match]:
            match = link[match]
            self.matched = length[match]
        if token in following[match]:
            match = following[match][token]
            self.matched += 1
        state = self._whole
        new = self._whole = len(length)
        following.append({})
        length.append(length[state] + 1)
        link.append(0)
        count.append(0)
        while state != -1 and token not in (there := following[state]):
            there[token] = new
            state = link[state]
        if state != -1:
            link[new] = self._split(state, token)
        for _ in range(_MOST_LINKS):
            if new == 0:
                break
            count[new] += 1
            new = link[new]
        # A split may have moved the match to the state of a longer string.
        while match and length[link[match]] >= self.matched:
            match = link[match]
        self.match = match

    def _split(self, state: int, token: int) -> int:
        """The state of the longest string of ``state`` with ``token``, split off if it has longer ones."""
        following, link, length = self.following, self.link, self.length
        target = following[state][token]
        if length[target] == length[state] + 1:
            return target
        clone = len(length)
        following.append(dict(following[target]))
        length.append(length[state] + 1)
        link.append(link[target])
        self.count.append(self.count[target])
        link[target] = clone
        while state != -1 and following[state].get(token) == target:
            following[state][token] = clone
            state = link[state]
        return clone
