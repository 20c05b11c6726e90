"""pass@1 of every cell whose answers were run on their tests, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from lookahead_bench.report.words import cell_labels

if TYPE_CHECKING:
    from lookahead_bench.store import Results

HEADINGS = ("method", "problems", "pass@1", "95 % interval", "gained", "lost", "cut short")
LEGEND = (
    "pass@1: share of the problems whose tests the answer passes. gained, lost: answers that pass where plain decoding's doesn't, "
    "and the other way about. cut short: answers that ended at the limit of tokens."
)


def has_passes(results: Results) -> bool:
    """Whether any answer was run on its tests."""
    return "pass_at_1" in results.summary and bool(results.summary["pass_at_1"].notna().any())


def lines(cells: pd.DataFrame) -> list[tuple[str, ...]]:
    """One data set's pass@1 as text, a line per cell that has one, a text per heading."""
    return [
        (
            label,
            _count(cell["problems_tested"]),
            f"{cell['pass_at_1']:.1%}",
            "–" if pd.isna(cell["pass_at_1_low"]) else f"{cell['pass_at_1_low']:.1%} to {cell['pass_at_1_high']:.1%}",
            *("–" if cell["is_baseline"] else _count(cell[name]) for name in ("passes_gained", "passes_lost")),
            _count(cell["answers_cut"]),
        )
        for label, cell in zip(cell_labels(cells), cells.to_dict("records"), strict=True)
        if pd.notna(cell["pass_at_1"])
    ]


def _count(value: float) -> str:
    return "–" if pd.isna(value) else str(int(value))
