"""The table at the end of a sweep, for a terminal or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookahead_bench.quality.words import pass_at_1
from lookahead_bench.report import load, words
from lookahead_bench.report.predictions import predictions
from lookahead_bench.stats import CONTROL

if TYPE_CHECKING:
    from lookahead_bench.store import Results

HEADINGS = ("method", "tokens/s", "speed-up", "verdict", "S", "c", "nodes", "identical")
STOCK_HEADING = "vs stock"
LEFT_ALIGNED = ("method", "verdict", "identical")
LEGEND = (
    "S: tokens per step. c: cost of a step against a plain one. Speed-up = S / c. "
    "nodes: tokens computed per step. identical: outputs equal to plain decoding's, token by token."
)
STOCK_LEGEND = "vs stock: tokens/s against the best of stock vLLM's own drafters in this run."
LOADED_LEGEND = f"{words.LOADED.strip()}: something else had the machine during most of its rows; its times may be wrong."
MOST_LINES = 20
# A pipe has no width of its own, and rich would take 80.
PIPE_WIDTH = 100
STOCK_WIDTH = 20
_STYLES = {"faster": "green", "slower": "red", "baseline": "dim", "control": "dim"}


def print_table(results: Results, console: Console) -> None:
    """Print a table per data set, then what it says in words: verdict, control, noise, warnings."""
    width = console.width
    if not console.is_terminal:
        console.width = max(width, PIPE_WIDTH + STOCK_WIDTH * words.has_stock_drafter(results))
    try:
        _print(results, console)
    finally:
        console.width = width


def _print(results: Results, console: Console) -> None:
    if results.summary.empty:
        _line(console, "No finished cells.")
        return
    for dataset, cells in results.summary.groupby("dataset", sort=False):
        console.print(_table(str(dataset), cells, results), highlight=False)
        console.print()
    _line(console, legend(results), "dim")
    load.print_load(results, console)
    for sentence in (*words.verdicts(results), *words.against_stock(results), *words.kernels(results), *words.control(results), *words.noise_floor(results), *predictions(results), *load.sentences(results), *pass_at_1(results.summary)):
        _line(console, sentence)
    for sentence in words.warnings(results):
        _line(console, f"Warning: {sentence}", "yellow")
    _lines(console, "Mismatches", words.mismatches(results))
    _lines(console, "Failures", words.failures(results))


def headings(results: Results) -> tuple[str, ...]:
    """The columns; the last one only where the run has a drafter of stock vLLM's to compare with."""
    return (*HEADINGS, STOCK_HEADING) if words.has_stock_drafter(results) else HEADINGS


def legend(results: Results) -> str:
    """What the columns are."""
    parts = [LEGEND]
    if words.has_stock_drafter(results):
        parts.append(STOCK_LEGEND)
    if any(words.is_marked(cell) for cell in results.summary.to_dict("records")):
        parts.append(LOADED_LEGEND)
    return " ".join(parts)


def lines(cells: pd.DataFrame, results: Results) -> list[tuple[str, ...]]:
    """One data set's table as text, a line per cell, a text per heading."""
    columns = len(headings(results))
    return [
        _texts(cell, label, results.rows[results.rows["cell_id"] == cell["cell_id"]])[:columns]
        for (_, cell), label in zip(cells.iterrows(), words.cell_labels(cells), strict=True)
    ]


def _texts(cell: pd.Series, label: str, rows: pd.DataFrame) -> tuple[str, ...]:
    return (
        f"{label}{words.LOADED if words.is_marked(cell) else ''}",
        _number(cell["tokens_per_second"], 1),
        "1" if cell["is_baseline"] and cell["rows_measured"] else _interval(cell, "speedup"),
        _verdict(cell),
        _number(cell["step_compression"], 2),
        _number(cell["step_cost"], 2),
        _number(cell["nodes_per_step"], 1),
        words.equivalence_text(words.equivalence_counts(rows))
        + (f", {int(cell['failures'])} failed" if cell["failures"] else ""),
        "best" if cell.get("best_stock") == cell["cell_id"] else _interval(cell, "speedup_vs_stock"),
    )


def _verdict(cell: pd.Series) -> str:
    if cell["is_baseline"]:
        return "baseline"
    return "control" if cell["strategy"] == CONTROL else str(cell["verdict"])


def title(dataset: str, results: Results) -> str:
    """What a table is about: "humaneval: 12 prompts, 12 turns, smollm2-135m, float32"."""
    rows = results.rows[results.rows["dataset"] == dataset]
    turns = rows[["prompt_id", "turn"]].drop_duplicates()
    counts = [words.plural(turns["prompt_id"].nunique(), "prompt"), words.plural(len(turns), "turn")]
    return f"{dataset}: " + ", ".join([*counts, *rows["model"].unique(), *rows["dtype"].unique()])


def _table(dataset: str, cells: pd.DataFrame, results: Results) -> Table:
    table = Table(
        title=Text(title(dataset, results), style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in headings(results):
        justify = "left" if heading in LEFT_ALIGNED else "right"
        table.add_column(heading, justify=justify, no_wrap=heading != "identical")
    for texts in lines(cells, results):
        # Text, so that a name with brackets in it is not read as markup.
        table.add_row(*map(Text, texts), style=_STYLES.get(texts[HEADINGS.index("verdict")]))
    return table


def _interval(cell: pd.Series, column: str) -> str:
    # Runs of earlier versions lack columns.
    ratio, low, high = (cell.get(f"{column}{end}", float("nan")) for end in ("", "_low", "_high"))
    return _number(ratio, 2) if pd.isna(low) else f"{ratio:.2f} [{low:.2f}, {high:.2f}]"


def _number(value: float, digits: int) -> str:
    return "–" if pd.isna(value) else f"{value:.{digits}f}"


def _lines(console: Console, heading: str, lines: list[str]) -> None:
    if not lines:
        return
    _line(console, f"{heading}:", "bold red")
    for line in lines[:MOST_LINES]:
        _line(console, f"  {line}")
    if len(lines) > MOST_LINES:
        _line(console, f"  and {len(lines) - MOST_LINES} more, in rows.parquet")


def _line(console: Console, text: str, style: str | None = None) -> None:
    # Text from data sets and errors is never read as markup.
    console.print(text, style=style, markup=False, highlight=False)
