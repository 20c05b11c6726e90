"""Speed-up, S and c over one swept parameter."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import PARAMETERS, SYMBOLS, dataset_names, finish, share_y, size, variants
from lookahead_bench.report.plots.drawing import Drawing
from lookahead_bench.report.words import cell_labels

if TYPE_CHECKING:
    from lookahead_bench.store import Results


def swept_parameters(summary: pd.DataFrame) -> list[str]:
    """Parameters of which some method on some data set has more than one value."""
    by_method = summary.groupby(["dataset", "strategy", "executor"])
    return [name for name in PARAMETERS if (by_method[name].nunique() > 1).any()]


def speedup_over(results: Results, parameter: str) -> Drawing:
    """Speed-up against a swept parameter, a panel per data set, with intervals."""
    datasets = dataset_names(results.summary)
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), 4.4))
    looks, dashes = _looks(results.summary, parameter), _dashes(results.summary, parameter)
    for panel, dataset in zip(axes, datasets, strict=True):
        cells = results.summary[results.summary["dataset"] == dataset]
        _references(panel, cells, parameter, dashes)
        for label, series in _series(cells, parameter):
            _with_interval(panel, series[parameter].astype(float), series, label, looks[label])
        _parameter_axis(panel, cells, parameter)
        panel.set_title(dataset)
        panel.set_ylabel("speed-up over plain decoding (×)")
    share_y(axes)
    finish(figure, axes, results, f"Speed-up over {SYMBOLS[parameter]}")
    return Drawing(figure, _data(results.summary, parameter, "speedup", "speedup_low", "speedup_high", "verdict"))


def step_compression_over(results: Results, parameter: str) -> Drawing:
    """Step compression S above, step cost c below: the speed-up is S / c."""
    datasets = dataset_names(results.summary)
    figure, grid = style.panels(2, len(datasets), *size(len(datasets), 6.6))
    looks = _looks(results.summary, parameter)
    titles = {"step_compression": "S (tokens per step)", "step_cost": "c (cost of a step, × plain)"}
    for line, (column, ylabel) in zip(grid, titles.items(), strict=True):
        for panel, dataset in zip(line, datasets, strict=True):
            cells = results.summary[results.summary["dataset"] == dataset]
            panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2, label="plain decoding")
            for label, series in _series(cells, parameter):
                look = looks[label]
                panel.plot(series[parameter].astype(float), series[column], label=label, **look)
            _parameter_axis(panel, cells, parameter)
            panel.set_ylabel(ylabel)
        share_y(line)
    for panel, dataset in zip(grid[0], datasets, strict=True):
        panel.set_title(dataset)
    finish(figure, grid[0] + grid[1], results, f"Step compression S and step cost c over {SYMBOLS[parameter]}")
    return Drawing(figure, _data(results.summary, parameter, "step_compression", "step_cost", "nodes_per_step"))


def _series(cells: pd.DataFrame, parameter: str) -> list[tuple[str, pd.DataFrame]]:
    """The methods that sweep ``parameter``: label (method and what is fixed), cells in its order."""
    swept = cells.dropna(subset=[parameter])
    series = []
    fixed = [name for name in PARAMETERS if name != parameter]
    for (name, *values), group in swept.assign(name=variants(swept)).groupby(["name", *fixed], dropna=False, sort=False):
        if group[parameter].nunique() < 2:
            continue
        parts = [f"{SYMBOLS[n]}={v}" for n, v in zip(fixed, values, strict=True) if not pd.isna(v)]
        label = name + (f" ({', '.join(parts)})" if parts else "")
        series.append((label, group.sort_values(parameter)))
    return series


def _data(summary: pd.DataFrame, parameter: str, *columns: str) -> pd.DataFrame:
    """The lines' points, and the methods without the parameter."""
    points = [
        series.assign(series=label)
        for _, cells in summary.groupby("dataset", sort=False)
        for label, series in _series(cells, parameter)
    ]
    others = summary[summary[parameter].isna()]
    data = pd.concat([*points, others.assign(series=cell_labels(others))])
    return data[["dataset", "series", parameter, *columns]]


def _looks(summary: pd.DataFrame, parameter: str) -> dict[str, dict[str, str]]:
    """Colour and marker of each swept method, the same on every data set."""
    by_dataset = (_series(cells, parameter) for _, cells in summary.groupby("dataset", sort=False))
    labels = dict.fromkeys(label for series in by_dataset for label, _ in series)
    return dict(zip(labels, style.looks(), strict=False))


def _dashes(summary: pd.DataFrame, parameter: str) -> dict[str, object]:
    """Line style of each method that is shown as a line, the same on every data set."""
    by_dataset = (_lines(cells, parameter) for _, cells in summary.groupby("dataset", sort=False))
    labels = dict.fromkeys(label for lines in by_dataset for label, _ in lines)
    return dict(zip(labels, itertools.cycle(style.DASHES), strict=False))


def _lines(cells: pd.DataFrame, parameter: str) -> list[tuple[str, float]]:
    """Label and speed-up of the methods that don't have the parameter."""
    plain = cells["is_baseline"] | (cells["strategy"] == "vllm_control")
    others = cells[~plain & cells[parameter].isna()].dropna(subset="speedup")
    return list(zip(cell_labels(others), others["speedup"], strict=True))


def _references(panel: Axes, cells: pd.DataFrame, parameter: str, dashes: dict[str, object]) -> None:
    """The line at 1.0, plain decoding against itself as a band, methods without the parameter as lines."""
    panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2, label="plain decoding")
    controls = cells["strategy"] == "vllm_control"
    for control in cells[controls].dropna(subset=["speedup_low", "speedup_high"]).to_dict("records"):
        panel.axhspan(
            control["speedup_low"], control["speedup_high"], color=style.CONTROL, alpha=0.4, linewidth=0,
            label="plain against plain",
        )  # fmt: skip
    for label, speedup in _lines(cells, parameter):
        panel.axhline(speedup, color=style.REFERENCE, linestyle=dashes[label], linewidth=1.2, label=label)


def _with_interval(
    panel: Axes, x: pd.Series, cells: pd.DataFrame, label: str, look: dict[str, str]
) -> None:
    values = cells[["speedup", "speedup_low", "speedup_high"]].to_numpy(dtype=float)
    reach = np.abs(values[:, 1:] - values[:, :1]).T
    panel.errorbar(x.to_numpy(), values[:, 0], yerr=reach, label=label, capsize=4, **look)


def _parameter_axis(panel: Axes, cells: pd.DataFrame, parameter: str) -> None:
    values = sorted({int(value) for value in cells[parameter].dropna()})
    panel.set_xticks(values)
    panel.set_xlabel(PARAMETERS[parameter])
