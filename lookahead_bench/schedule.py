"""The order of the work: a pure function of plan and prompts, so that a resumed run keeps to it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lookahead_bench.records import Cell, Prompt
from lookahead_bench.tables import Key

if TYPE_CHECKING:
    from lookahead_bench.plan import Plan


@dataclass(frozen=True, slots=True)
class Work:
    """What is handed to an engine at once: one turn of one or more prompts, in one cell.

    Attributes:
        cell: the method and its settings.
        repeat, turn: from 0.
        prompts: at least one, all of the cell's data set.
    """

    cell: Cell
    repeat: int
    turn: int
    prompts: tuple[Prompt, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Keys of the rows that it makes, in the order of the prompts."""
        return tuple(Key(self.cell.cell_id, prompt.prompt_id, self.turn, self.repeat) for prompt in self.prompts)


def schedule(plan: Plan, prompts: Mapping[str, Sequence[Prompt]]) -> list[Work]:
    """All work of a plan in the order in which it is measured.

    Prompts of all data sets are mixed, in an order of its own for each repeat. On a prompt all
    cells take turns, in an order of its own too, so that slow drift of the machine meets all of
    them alike; the next turn of a conversation follows when all cells have had the one before.
    """
    cells: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        cells.setdefault(cell.dataset, []).append(cell)
    work = []
    for repeat in range(plan.repeats):
        order = random.Random(f"order of {plan.seed} repeat {repeat}")
        groups = []
        for dataset, competing in cells.items():
            size = max(cell.concurrency for cell in competing)
            shuffled = order.sample(prompts[dataset], len(prompts[dataset]))
            groups += [(dataset, shuffled[i : i + size]) for i in range(0, len(shuffled), size)]
        order.shuffle(groups)
        for dataset, group in groups:
            for turn in range(max(prompt.num_turns for prompt in group)):
                asked = tuple(prompt for prompt in group if turn < prompt.num_turns)
                competing = order.sample(cells[dataset], len(cells[dataset]))
                work += [Work(cell, repeat, turn, asked) for cell in competing]
    return work


def remaining(work: Iterable[Work], done: Collection[Key]) -> list[Work]:
    """The work whose rows are not done, in its order; prompts that are done are left out."""
    left = []
    for item in work:
        missing = tuple(prompt for prompt, key in zip(item.prompts, item.keys) if key not in done)
        if missing:
            left.append(replace(item, prompts=missing))
    return left


def baseline_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The plain cell that ``cell`` is compared with: same data, model, dtype and decoding settings."""

    def settings(one: Cell) -> tuple[object, ...]:
        return (
            one.dataset, one.engine.model, one.engine.dtype, one.max_new_tokens, one.temperature, one.concurrency,
        )  # fmt: skip

    return next((one for one in cells if one.is_baseline and settings(one) == settings(cell)), None)
