"""Where the time of a step goes: drafting, forward pass, verification, commit and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import MOST_BARS, alone, dataset_names, labelled, most_bars, size, titled
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results

PARTS = ("draft", "forward", "verify", "commit", "rest")
WHOLE = "not split (stock)"
_HATCHES = dict(zip((*PARTS, WHOLE), ("", "", "///", "...", "", "\\\\\\"), strict=True))
_COLOURS = dict(zip((*PARTS, WHOLE), ("#D55E00", "#0072B2", "#CC79A7", "#E69F00", "#BBBBBB", "#FFFFFF"), strict=True))


def step_time(results: Results) -> Drawing | None:
    """Mean milliseconds of a step per cell, stacked by what they were spent on.

    The plug-in measures its parts; the rest is vLLM's scheduler, input preparation and output. A
    stock step is one part. Only requests that were decoded alone. None without such steps.
    """
    data = _data(results)
    if data.empty:
        return None
    datasets = dataset_names(data)
    bars = most_bars(data.drop_duplicates(["dataset", "name"]))
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), 2.3 + 0.36 * bars))
    for panel, dataset in zip(axes, datasets, strict=True):
        table = data[data["dataset"] == dataset].pivot(index="name", columns="part", values="milliseconds").fillna(0)
        names = data.loc[data["dataset"] == dataset, "name"].drop_duplicates().head(MOST_BARS)[::-1]
        left = np.zeros(len(names))
        below = np.zeros(len(names))
        for part in (*PARTS, WHOLE):
            values = table.reindex(names).get(part, pd.Series(0.0, names)).to_numpy(float)
            panel.barh(
                range(len(names)), values, left=np.where(values < 0, below, left), height=0.74, label=part, color=_COLOURS[part], hatch=_HATCHES[part],
                edgecolor="#333333", linewidth=0.6,
            )  # fmt: skip
            left += np.maximum(values, 0)
            below += np.minimum(values, 0)
        for place, total in enumerate(left + below):
            panel.annotate(f"{total:.1f}", (left[place], place), (5, 0), textcoords="offset points", va="center", fontsize=10)
        panel.set_yticks(range(len(names)), list(names))
        panel.set_ylim(-0.6, max(1, len(names)) - 0.4)
        panel.set_xlim(1.14 * below.min(), 1.14 * left.max())
        panel.grid(False, axis="y")
        panel.set_xlabel("milliseconds per step, mean")
        panel.set_title(dataset)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(titled(results, "Where a step's time goes"))
    return Drawing(figure, data)


def _data(results: Results) -> pd.DataFrame:
    """A line per cell and part: dataset, name, part, milliseconds, share."""
    steps = alone(results)
    means = steps.groupby("cell_id")[["seconds", *(f"{part}_seconds" for part in PARTS[:-1])]].mean()
    lines = []
    for cell in labelled(results.summary).to_dict("records"):
        if cell["cell_id"] not in means.index:
            continue
        mean = means.loc[cell["cell_id"]]
        parts = {part: mean[f"{part}_seconds"] for part in PARTS[:-1]}
        rest = mean["seconds"] - sum(parts.values())
        # Below 0 only if the parts overlap or are not of these steps: then the figure has to show it.
        parts = parts | {"rest": rest} if cell["executor"] != "stock" else {WHOLE: mean["seconds"]}
        for part, seconds in parts.items():
            lines.append((cell["dataset"], cell["name"], part, 1000 * seconds, seconds / mean["seconds"]))
    return pd.DataFrame(lines, columns=["dataset", "name", "part", "milliseconds", "share"])
