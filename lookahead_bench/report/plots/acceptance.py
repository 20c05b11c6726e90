"""How many tokens the steps of each method brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import PercentFormatter

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import MOST_BARS, dataset_names, drafting, first_of, labelled, most_bars, size, titled
from lookahead_bench.report.plots.drawing import Drawing
from lookahead_bench.stats import acceptance_histogram as histogram

if TYPE_CHECKING:
    from lookahead_bench.store import Results

# From here on a step that emits this many tokens or more is one class of the histogram.
MOST_ACCEPTED = 8


def acceptance_histogram(results: Results) -> Drawing:
    """Per cell the share of its steps that emitted 1, 2, 3, … tokens (the bonus token included).

    Methods that drafted, at most the first MOST_BARS of them per data set.
    """
    shown = drafting(results.summary)
    datasets = dataset_names(shown) or dataset_names(results.summary)
    height = 2.3 + 0.36 * most_bars(shown)
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), height))
    most = int(min(MOST_ACCEPTED, results.steps["accepted"].max()))
    colours = style.sequential(most)
    for panel, dataset in zip(axes, datasets, strict=True):
        cells = shown[shown["dataset"] == dataset].head(MOST_BARS).iloc[::-1]
        shares = np.array([_shares(results.steps, cell_id, most) for cell_id in cells["cell_id"]])
        shares = shares.reshape(len(cells), most)
        left = np.zeros(len(cells))
        for tokens in range(1, most + 1):
            share = shares[:, tokens - 1]
            more = "+" if tokens == MOST_ACCEPTED else ""
            panel.barh(
                range(len(cells)),
                share,
                left=left,
                height=0.78,
                color=colours[tokens - 1],
                edgecolor="white",
                linewidth=0.6,
                label=f"{tokens}{more}",
            )
            left += share
        panel.set_yticks(range(len(cells)), labelled(cells)["name"])
        panel.grid(False)
        panel.set_ylim(-0.6, max(1, len(cells)) - 0.4)
        panel.set_xlim(0, 1)
        for place, compression in enumerate(cells["step_compression"]):
            panel.annotate(
                f"S={compression:.2f}", (1, place), (6, 0), textcoords="offset points", va="center"
            )
        panel.xaxis.set_major_formatter(PercentFormatter(1.0))
        panel.set_xlabel("share of decoding steps")
        panel.set_title(dataset)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, title="tokens emitted by a step", loc="outside lower center", ncols=max(1, most)
    )
    figure.suptitle(titled(results, "Acceptance histogram") + first_of(shown))
    return Drawing(figure, _data(shown, results.steps))


def _data(cells: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    counts = histogram(steps)
    counts["share"] = counts["count"] / counts.groupby("cell_id")["count"].transform("sum")
    names = labelled(cells)[["cell_id", "name"]]
    return names.merge(counts, on="cell_id")[["dataset", "name", "accepted", "count", "share"]]


def _shares(steps: pd.DataFrame, cell_id: str, most: int) -> np.ndarray:
    accepted = steps.loc[steps["cell_id"] == cell_id, "accepted"].to_numpy()
    counts = np.bincount(np.minimum(accepted, most), minlength=most + 1)[1:]
    return counts / max(1, counts.sum())
