"""What several figures share: titles, sizes, the names of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lookahead_bench.report import style
from lookahead_bench.report.words import cell_labels

if TYPE_CHECKING:
    from lookahead_bench.store import Results

PARAMETERS = {"ngram": "N (n-gram size)", "window": "W (window size)", "branches": "G (candidates per key)"}
SYMBOLS = {"ngram": "N", "window": "W", "branches": "G"}
MOST_BARS = 40
"""Cells of a data set that a figure with a line per cell shows, at most."""


def titled(results: Results, text: str) -> str:
    """``text`` with what was measured: "Speed-up: smollm2-135m, float32"."""
    models = ", ".join(results.rows["model"].unique())
    dtypes = ", ".join(results.rows["dtype"].unique())
    return f"{text}: {models}, {dtypes}"


def dataset_names(summary: pd.DataFrame) -> list[str]:
    """In their order in the summary."""
    return list(summary["dataset"].unique())


def size(columns: int, height: float) -> tuple[float, float]:
    """Width and height in inches of a figure with panels side by side."""
    return (2.0 + 4.2 * columns, height)


def most_bars(cells: pd.DataFrame) -> int:
    """Cells of the data set that has most, at most MOST_BARS."""
    counts = cells.groupby("dataset").size()
    return min(MOST_BARS, int(counts.max())) if len(counts) else 1


def share_y(axes: list[Axes]) -> None:
    """One range for all of them."""
    low = min(panel.get_ylim()[0] for panel in axes)
    high = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(low, high)


def finish(figure: Figure, axes: list[Axes], results: Results, text: str) -> None:
    """Title above, one legend for all panels below."""
    figure.suptitle(titled(results, text))
    style.legend_below(figure, *axes)


def drafting(summary: pd.DataFrame) -> pd.DataFrame:
    """The cells whose method drafted something."""
    return summary[summary["drafted"] > 0]


def labelled(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with a column ``name``: what no other method among them is called."""
    return cells.assign(name=cell_labels(cells))


def variants(cells: pd.DataFrame) -> list[str]:
    """What each cell is called without W, N and G: method, executor, requests at once and other parameters where they differ."""
    return cell_labels(cells.assign(label=cells["strategy"]))


def first_of(shown: pd.DataFrame, which: str = "first") -> str:
    """A line for the title of a figure that has MOST_BARS cells of a data set at most; "" where it has all."""
    most = int(shown.groupby("dataset").size().max()) if len(shown) else 0
    return f"\nthe {which} {MOST_BARS} of {most} cells; all are in the CSV file" if most > MOST_BARS else ""


def method(strategy: str, executor: str) -> str:
    """A method without its parameters: "lookahead", "lookahead, fork"."""
    return f"{strategy}, fork" if executor == "fork" else strategy


def looks(cells: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Colour and marker of each method in ``cells``, the same on every data set."""
    pairs = cells[["strategy", "executor"]].drop_duplicates().sort_values(["strategy", "executor"])
    names = [method(strategy, executor) for strategy, executor in pairs.itertuples(index=False)]
    return dict(zip(names, style.looks(), strict=False))


def alone(results: Results) -> pd.DataFrame:
    """The steps of cells that ran one request at a time: there a step's seconds are its own."""
    cells = results.summary.loc[results.summary["concurrency"] == 1, "cell_id"]
    return results.steps[results.steps["cell_id"].isin(cells)]
