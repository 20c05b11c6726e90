"""What a cost sweep leaves beside the files that every sweep leaves: ``cost.csv``, stored curves, a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console
from rich.table import Table

from lookahead_bench.cost.curve import cost_table
from lookahead_bench.cost.library import save_curves
from lookahead_bench.files import replace

if TYPE_CHECKING:
    from lookahead_bench.models import ModelSource
    from lookahead_bench.plan import Plan
    from lookahead_bench.store import ResultStore


def report_cost(store: ResultStore, plan: Plan, model: ModelSource, results_dir: Path, console: Console) -> None:
    """Write and show c(T), if the run measured it.

    Raises:
        OSError: a file can't be written.
    """
    table = cost_table(*store.frames(), seed=plan.seed)
    if table.empty:
        return
    replace(store.folder / "cost.csv", table.to_csv(index=False).encode())
    for (executor, shape, _), lines in table.groupby(["executor", "shape", "top_k"], sort=False):
        _print_curve(console, f"c(T), {executor}, {shape} drafts, {lines['dtype'].iloc[0]}", lines)
    for path in save_curves(table, plan, model, store.folder, results_dir):
        console.print(f"curve stored: {path}", markup=False, highlight=False, soft_wrap=True)


def _print_curve(console: Console, title: str, lines: pd.DataFrame) -> None:
    """One line per size; per context the cost to a plain step of the engine, and the plain step's seconds below."""
    shown = Table(box=None, pad_edge=False, title=title, title_justify="left")
    contexts = sorted(lines["context"].unique())
    for heading in ("T", *(f"context {context}" for context in contexts)):
        shown.add_column(heading, justify="right", no_wrap=True)
    for size, of_size in lines.groupby("in_flight"):
        cell = of_size.set_index("context")
        shown.add_row(
            str(size),
            *(
                f"{cell['ratio'][c]:.2f} [{cell['ratio_low'][c]:.2f}, {cell['ratio_high'][c]:.2f}]" if c in cell.index else ""
                for c in contexts
            ),
        )
    plain = lines[lines["in_flight"] == 1].set_index("context")
    shown.add_row("ms, T=1", *(f"{1e3 * plain['seconds'][context]:.1f}" for context in contexts))
    shown.add_row("T=1 / stock", *(f"{plain['stock_ratio'][context]:.2f}" for context in contexts))
    console.print(shown)
