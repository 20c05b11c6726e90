"""What the cells of a run have come to so far, from its rows alone: for whoever watches while it runs.

Plain sums: no intervals and no verdicts, which need all prompts and take time that a run has no use for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lookahead_bench.stats import SETTINGS

RUNNING = "running"
"""In place of a verdict, as long as a cell goes on."""


@dataclass(slots=True)
class _Cell:
    """Sums over one cell's rows.

    Attributes:
        first: its first row, for what describes the cell.
        units: per (prompt, turn, repeat) its decode tokens and seconds.
    """

    first: Mapping[str, Any]
    units: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)
    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    failures: int = 0
    mismatches: int = 0

    @property
    def setting(self) -> tuple[object, ...]:
        return tuple(self.first[name] for name in SETTINGS)


class LiveCells:
    """Sums per cell, told row by row."""

    def __init__(self) -> None:
        self._cells: dict[str, _Cell] = {}
        self._baselines: dict[tuple[object, ...], _Cell] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """One finished row of the store."""
        cell = self._cells.setdefault(row["cell_id"], _Cell(row))
        if row["is_baseline"]:
            self._baselines[cell.setting] = cell
        cell.rows += 1
        if isinstance(row["error"], str):  # pandas has NaN where there is none
            cell.failures += 1
            return
        cell.prompts.add(row["prompt_id"])
        cell.mismatches += row.get("equivalence") == "mismatch"
        tokens, seconds = row["new_tokens"] - 1, row["decode_seconds"]
        if tokens > 0 and seconds:
            cell.tokens, cell.seconds, cell.steps = cell.tokens + tokens, cell.seconds + seconds, cell.steps + row["decode_steps"]
            cell.units[row["prompt_id"], row["turn"], row["repeat"]] = (tokens, seconds)

    def lines(self) -> dict[str, dict[str, Any]]:
        """Per cell id what a summary's line has and can be told already; verdict is RUNNING."""
        return {cell_id: self._line(cell) for cell_id, cell in self._cells.items()}

    def _line(self, cell: _Cell) -> dict[str, Any]:
        described = ("dataset", "label", "strategy", "window", "ngram", "branches", "executor", "dtype", "concurrency")
        return {
            **{name: cell.first.get(name) for name in described},
            "tokens_per_second": cell.tokens / cell.seconds if cell.seconds else None,
            "step_compression": cell.tokens / cell.steps if cell.steps else None,
            "speedup": self._speedup(cell),
            "verdict": RUNNING,
            "prompts": len(cell.prompts),
            "rows_measured": cell.rows - cell.failures,
            "failures": cell.failures,
            "mismatches": cell.mismatches,
        }

    def _speedup(self, cell: _Cell) -> float | None:
        """Over the prompts, turns and repeats that the baseline has as well."""
        baseline = self._baselines.get(cell.setting)
        shared = cell.units.keys() & baseline.units.keys() if baseline else ()
        if not shared:
            return None
        tokens, seconds, base_tokens, base_seconds = (
            sum(units[unit][place] for unit in shared) for units in (cell.units, baseline.units) for place in (0, 1)
        )
        return tokens / seconds / (base_tokens / base_seconds)
