"""A comparison of two runs as Markdown, the answer first."""

from __future__ import annotations

import math

from lookahead_bench.regress.compare import CellChange, Comparison
from lookahead_bench.report.words import plural


def verdict(comparison: Comparison, exact_only: bool) -> tuple[bool, str]:
    """Whether the run passes, and that in one sentence.

    Args:
        exact_only: times decide nothing.
    """
    worse, slower = len(comparison.worse), 0 if exact_only else len(comparison.slower)
    if not worse and not slower:
        return True, "No regression."
    parts = []
    if worse:
        parts.append(f"{plural(worse, 'exact result')} worse")
    if slower:
        parts.append(f"{plural(slower, 'cell')} slower")
    return False, "Regression: " + ", ".join(parts) + "."


def markdown(comparison: Comparison, before: str, after: str, exact_only: bool) -> str:
    """The summary of a comparison.

    Args:
        before, after: names of the runs.
        exact_only: times decide nothing; they are shown all the same.
    """
    lines = [f"## {verdict(comparison, exact_only)[1]}", "", f"`{before}` → `{after}`", ""]
    lines += _list("Worse", comparison.worse)
    lines += _list("Slower" + (" (decides nothing here)" if exact_only else ""), [_slower(cell) for cell in comparison.slower])
    lines += _list("Better", [f"{c.dataset}, {c.label}: {line}" for c in comparison.cells for line in c.better])
    lines += ["| data set | method | outputs | S | speed-up | change [95 %] | speed | exact |", "|---|---|--:|--:|--:|--:|---|---|"]
    lines += [_row(cell) for cell in comparison.cells]
    lines += ["", *(f"- {note}" for note in comparison.notes)]
    if comparison.new:
        lines.append("- Not in the baseline: " + "; ".join(comparison.new) + ".")
    return "\n".join(lines).rstrip() + "\n"


def _list(title: str, items: list[str]) -> list[str]:
    return [f"**{title}**", "", *(f"- {item}" for item in items), ""] if items else []


def _slower(cell: CellChange) -> str:
    return (
        f"{cell.dataset}, {cell.label}: speed-up {_number(cell.speedup[0])} → {_number(cell.speedup[1])}, "
        f"× {cell.change:.2f} [{cell.change_low:.2f}, {cell.change_high:.2f}]"
    )


def _row(cell: CellChange) -> str:
    change = "" if not cell.speed else f"{_number(cell.change)} [{_number(cell.change_low)}, {_number(cell.change_high)}]"
    exact = "worse" if cell.worse else "better" if cell.better else "same" if cell.outputs else "not compared"
    columns = (
        cell.dataset, cell.label, str(cell.outputs), _arrow(cell.step_compression), _arrow(cell.speedup), change,
        cell.speed, exact,
    )  # fmt: skip
    return "| " + " | ".join(columns) + " |"


def _arrow(values: tuple[float, float]) -> str:
    before, after = map(_number, values)
    return before if before == after else f"{before} → {after}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
