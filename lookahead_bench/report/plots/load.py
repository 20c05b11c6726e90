"""Tokens per second against the number of requests at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.ticker import NullFormatter, ScalarFormatter

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import dataset_names, finish, size
from lookahead_bench.report.plots.drawing import Drawing
from lookahead_bench.report.words import cell_labels

if TYPE_CHECKING:
    from lookahead_bench.store import Results

THROUGHPUT = "throughput"
"""The summary's column with the tokens per second of all requests together, where a run has it."""


def throughput_over_concurrency(results: Results) -> Drawing | None:
    """A line per method: tokens/s of all requests together above, of a request alone below.

    None if all cells had the same number of requests at once.
    """
    cells = results.summary.dropna(subset="tokens_per_second")
    if cells["concurrency"].nunique() < 2:
        return None
    columns = {"tokens_per_second": "tokens/s of one request"}
    if THROUGHPUT in cells and cells[THROUGHPUT].notna().any():
        columns = {THROUGHPUT: "tokens/s of all requests", **columns}
    data, datasets = _data(cells, list(columns)), dataset_names(cells)
    figure, grid = style.panels(len(columns), len(datasets), *size(len(datasets), 1.6 + 3.0 * len(columns)))
    styles = dict(zip(data["name"].unique(), style.looks(), strict=False))
    for line, (column, label) in zip(grid, columns.items(), strict=True):
        for panel, dataset in zip(line, datasets, strict=True):
            for name, series in data[data["dataset"] == dataset].groupby("name", sort=False):
                panel.plot(series["concurrency"], series[column], label=name, **styles[name])
            panel.set_xscale("log", base=2)
            panel.set_xticks(sorted(data["concurrency"].unique()))
            panel.xaxis.set_major_formatter(ScalarFormatter())
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.set_ylim(bottom=0)
            panel.set_xlabel("requests at once")
            panel.set_ylabel(label)
    for panel, dataset in zip(grid[0], datasets, strict=True):
        panel.set_title(dataset)
    finish(figure, grid[0], results, "Speed against requests at once")
    return Drawing(figure, data)


def _data(cells: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """A line per cell, named without its concurrency, in its order."""
    parts = [part.assign(name=cell_labels(part)) for _, part in cells.groupby("concurrency")]
    data = pd.concat(parts).sort_values(["dataset", "name", "concurrency"])
    return data[["dataset", "name", "concurrency", *columns, "speedup", "speedup_low", "speedup_high", "verdict"]]
