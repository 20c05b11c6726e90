"""The order of the work: a pure function of plan and prompts, so that a resumed run keeps to it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lookahead_bench.records import Cell, Prompt
from lookahead_bench.tables import Key

if TYPE_CHECKING:
    from lookahead_bench.plan import Plan


GROUP_ROUNDS = 2
"""Prompts that are handed over at once, at least, as a multiple of the requests in flight, where that is more than one.

With one round requests would only ever leave, and the load would fall from the first that ends.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What is handed to an engine at once: one turn of one or more prompts, in one cell.

    Attributes:
        cell: the method and its settings.
        repeat, turn: from 0.
        prompts: at least one, all of the cell's data set, in the order in which they are handed over.
        group: which prompts these are: the same number in all cells of a data set and concurrency.
        stored: ids of the prompts whose rows are there already. They are decoded once more, since the others
            would have the engine to themselves otherwise, and what comes of them is dropped.
    """

    cell: Cell
    repeat: int
    turn: int
    prompts: tuple[Prompt, ...]
    group: int = 0
    stored: frozenset[str] = field(default_factory=frozenset)

    @property
    def wanted(self) -> tuple[Prompt, ...]:
        """The prompts that rows are made of."""
        return tuple(prompt for prompt in self.prompts if prompt.prompt_id not in self.stored)

    @property
    def keys(self) -> tuple[Key, ...]:
        """Keys of the rows that it makes, in the order of the prompts."""
        return tuple(Key(self.cell.cell_id, prompt.prompt_id, self.turn, self.repeat) for prompt in self.wanted)


def schedule(plan: Plan, prompts: Mapping[str, Sequence[Prompt]]) -> list[Work]:
    """All work of a plan in the order in which it is measured.

    Prompts of all data sets are mixed, in an order of its own for each repeat. On a prompt all
    cells take turns, in an order of its own too, so that slow drift of the machine meets all of
    them alike; the next turn of a conversation follows when all cells have had the one before.
    Where a cell has several requests at once, that goes for groups of prompts.
    """
    cells: dict[tuple[str, int], list[Cell]] = {}
    for cell in plan.cells:
        cells.setdefault((cell.dataset, cell.concurrency), []).append(cell)
    work = []
    for repeat in range(plan.repeats):
        order = random.Random(f"order of {plan.seed} repeat {repeat}")
        groups = []
        for load in cells:
            dataset, concurrency = load
            shuffled = order.sample(prompts[dataset], len(prompts[dataset]))
            groups += [(load, number, group) for number, group in enumerate(_groups(shuffled, concurrency))]
        order.shuffle(groups)
        for load, number, group in groups:
            for turn in range(max(prompt.num_turns for prompt in group)):
                asked = tuple(prompt for prompt in group if turn < prompt.num_turns)
                competing = order.sample(cells[load], len(cells[load]))
                work += [Work(cell, repeat, turn, asked, number) for cell in competing]
    return work


def _groups(prompts: Sequence[Prompt], concurrency: int) -> list[Sequence[Prompt]]:
    """Groups of about one size, none so small that the load is never reached, as far as there are prompts for it."""
    size = concurrency if concurrency == 1 else GROUP_ROUNDS * concurrency
    count = max(1, len(prompts) // size)
    ends = [len(prompts) * number // count for number in range(count + 1)]
    return [prompts[start:end] for start, end in zip(ends, ends[1:])]


def remaining(work: Iterable[Work], done: Collection[Key]) -> list[Work]:
    """The work whose rows are not all done, in its order; groups keep their members, so that the load is the same."""
    left = []
    for item in work:
        stored = frozenset(key.prompt_id for key in item.keys if key in done)
        if len(stored) < len(item.prompts):
            left.append(replace(item, stored=stored))
    return left


def baseline_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The plain cell that ``cell`` is compared with: same data, model, dtype and decoding settings."""

    def settings(one: Cell) -> tuple[object, ...]:
        return (
            one.dataset, one.engine.model, one.engine.dtype, one.max_new_tokens, one.temperature, one.concurrency,
        )  # fmt: skip

    return next((one for one in cells if one.is_baseline and settings(one) == settings(cell)), None)
