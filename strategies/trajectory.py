"""What a pass says beyond its bonus token: the target's choices after rejected nodes, as guesses at what comes next.

A rejected node stands where the bonus token belongs, so the target's choice after it is a guess at the
token after the bonus, and the choices below it are guesses at later ones: one step of a Jacobi iteration
(Santilli et al. 2023, arXiv 2305.10427), of which lookahead decoding makes its n-grams.
State: the last pass's tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from lookahead_bench.strategy import Step
from lookahead_bench.verify import NO_CHOICE

Nodes = tuple[int, ...]
"""Rejected nodes of the last pass whose choices are guesses at one place."""


class Trajectory:
    """Guesses below the last pass's bonus token, followed token by token.

    Attributes:
        start: nodes whose choices are guesses at the token after the bonus.
    """

    __slots__ = ("start", "_choices", "_children")

    def __init__(self) -> None:
        self.start: Nodes = ()
        self._choices: tuple[int, ...] = ()
        self._children: dict[int, list[int]] = {}

    def learn(self, step: Step) -> None:
        """Take over the choices of a pass in place of the one before."""
        self._choices = step.choices
        self._children = {}
        for node in range(1, len(step.tree)):
            if step.choices[node] != NO_CHOICE:
                self._children.setdefault(step.tree.parents[node], []).append(node)
        self.start = self._below((step.path[-1] if step.path else 0,))

    def guesses(self, nodes: Nodes) -> list[int]:
        """The tokens that the nodes guess, each once, that of the best node first."""
        return list(dict.fromkeys(self._choices[node] for node in nodes))

    def follow(self, nodes: Nodes, token: int) -> Nodes:
        """Nodes whose choices are guesses at the token after ``token``, where ``nodes`` guess that one."""
        return self._below(node for node in nodes if self._choices[node] == token)

    def _below(self, nodes: Iterable[int]) -> Nodes:
        return tuple(child for node in nodes for child in self._children.get(node, ()))
