"""Tokens per step against the logarithm of the tokens in flight: the paper's scaling law."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import StrMethodFormatter

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import dataset_names, drafting, finish, labelled, looks, method, share_y, size
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results

FIT_CELLS = 3
"""Cells of one method with tokens in flight of their own that a line is fitted to, at least."""


def compression_scaling(results: Results) -> Drawing | None:
    """S against log2 of the mean tokens in flight, a point per cell, a fitted line per method.

    Fu et al. 2024, section 4.2: with enough candidates S grows linearly with the logarithm of a
    step's tokens. None if nothing was drafted.
    """
    cells = drafting(results.summary).dropna(subset=["nodes_per_step", "step_compression"])
    cells = cells[cells["nodes_per_step"] > 1]
    if cells.empty:
        return None
    datasets, styles, data = dataset_names(cells), looks(cells), _data(cells)
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), 4.6))
    for panel, dataset in zip(axes, datasets, strict=True):
        panel.plot(1, 1, "*", color=style.REFERENCE, markersize=11, label="plain decoding")
        for name, points in data[data["dataset"] == dataset].groupby("method"):
            look = styles[name]
            panel.plot(points["nodes_per_step"], points["step_compression"], linestyle="none", label=name, **look)
            if not np.isnan(points["slope"].iloc[0]):
                ends = np.array([points["nodes_per_step"].min(), points["nodes_per_step"].max()])
                line = points["intercept"].iloc[0] + points["slope"].iloc[0] * np.log2(ends)
                panel.plot(ends, line, "--", color=look["color"], linewidth=1.2)
                panel.annotate(
                    f"{points['slope'].iloc[0]:+.2f} per doubling", (ends[1], line[1]), (-4, 10),
                    textcoords="offset points", ha="right", fontsize=9, color=look["color"],
                )  # fmt: skip
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.set_xlabel("tokens in flight per step, mean (log2)")
        panel.set_ylabel("S (tokens per step)")
        panel.set_title(dataset)
    share_y(axes)
    finish(figure, axes, results, "Step compression against tokens in flight")
    return Drawing(figure, data)


def _data(cells: pd.DataFrame) -> pd.DataFrame:
    """A line per cell; slope (S per doubling) and intercept (S at one token) of the line through its method's cells."""
    data = labelled(cells)
    data["method"] = [method(*pair) for pair in data[["strategy", "executor"]].itertuples(index=False)]
    data["log2_nodes"] = np.log2(data["nodes_per_step"].astype(float))
    data["slope"] = data["intercept"] = np.nan
    for _, points in data.groupby(["dataset", "method"]):
        if points["log2_nodes"].round(2).nunique() >= FIT_CELLS:
            slope, intercept = np.polyfit(points["log2_nodes"], points["step_compression"].astype(float), 1)
            data.loc[points.index, ["slope", "intercept"]] = slope, intercept
    return data[["dataset", "method", "name", "nodes_per_step", "log2_nodes", "step_compression", "slope", "intercept"]]
