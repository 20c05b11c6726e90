"""The n-gram pool of lookahead decoding: what may follow a token, least recently used goes first.

Source: Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead
Decoding", arXiv 2402.02057, section 3.3. State: at most KEYS keys with ``branches`` entries each.
"""

from __future__ import annotations

KEYS = 8192
"""Most keys that a pool holds; beyond, the key that was longest without a new n-gram goes."""


class NGramPool:
    """Continuations by the token before them.

    Args:
        branches: most continuations per key (G).
        keys: most keys; None for no limit.
    """

    __slots__ = ("_branches", "_keys", "_entries")

    def __init__(self, branches: int, keys: int | None = KEYS) -> None:
        self._branches = branches
        self._keys = keys
        # dicts as ordered sets: oldest first
        self._entries: dict[int, dict[tuple[int, ...], None]] = {}

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._entries)

    def add(self, key: int, continuation: tuple[int, ...]) -> None:
        """Note that ``continuation`` followed ``key``, now the most recently used of its entries."""
        entries = self._entries.pop(key, None)
        if entries is None:
            entries = {}
            if self._keys is not None and len(self._entries) >= self._keys:
                del self._entries[next(iter(self._entries))]
        elif continuation in entries:
            del entries[continuation]
        elif len(entries) >= self._branches:
            del entries[next(iter(entries))]
        entries[continuation] = None
        self._entries[key] = entries

    def add_text(self, tokens: tuple[int, ...], n: int) -> None:
        """Add every n-gram of ``tokens`` in order; none if there are fewer than ``n`` tokens."""
        for start in range(len(tokens) - n + 1):
            self.add(tokens[start], tokens[start + 1 : start + n])

    def oldest_first(self, key: int) -> tuple[tuple[int, ...], ...]:
        """The continuations of ``key``, least recently used first."""
        return tuple(self._entries.get(key, ()))

    def newest_first(self, key: int) -> tuple[tuple[int, ...], ...]:
        """The continuations of ``key``, most recently used first."""
        return tuple(reversed(self._entries.get(key, {})))
