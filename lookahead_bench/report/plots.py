"""The figures of a sweep, as PNG files with fixed names.

| file | shown when |
|---|---|
| speedup_by_method.png | always |
| acceptance_histogram.png | always |
| speedup_over_{ngram,window,branches}.png | that parameter alone is swept |
| step_compression_over_{ngram,window,branches}.png | that parameter alone is swept |
| speedup_grid.png | two or three parameters are swept together |
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lookahead_bench.report import style
from lookahead_bench.report.words import cell_labels

if TYPE_CHECKING:
    from lookahead_bench.store import Results

PARAMETERS = {"ngram": "N (n-gram size)", "window": "W (window size)", "branches": "G (candidates per key)"}
SYMBOLS = {"ngram": "N", "window": "W", "branches": "G"}
# From here on a step that emits this many tokens or more is one class of the histogram.
MOST_ACCEPTED = 8
MOST_BARS = 40


def draw_all(results: Results) -> list[Path]:
    """Draw what the sweep has to show into ``results.folder/plots``; returns the files."""
    if results.summary.empty:
        return []
    folder = Path(results.folder) / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    with style.applied():
        for name, figure in _figures(results).items():
            path = folder / f"{name}.png"
            figure.savefig(path)
            paths.append(path)
    return paths


def _figures(results: Results) -> dict[str, Figure]:
    figures = {}
    swept = swept_parameters(results.summary)
    if len(swept) == 1:
        (parameter,) = swept
        figures[f"speedup_over_{parameter}"] = speedup_over(results, parameter)
        figures[f"step_compression_over_{parameter}"] = step_compression_over(results, parameter)
    elif swept and results.summary[["speedup", *swept]].notna().all(axis=1).any():
        figures["speedup_grid"] = speedup_grid(results, swept)
    figures["speedup_by_method"] = speedup_by_method(results)
    if not results.steps.empty:
        figures["acceptance_histogram"] = acceptance_histogram(results)
    return figures


def swept_parameters(summary: pd.DataFrame) -> list[str]:
    """Parameters of which some method on some data set has more than one value."""
    by_method = summary.groupby(["dataset", "strategy", "executor"])
    return [name for name in PARAMETERS if (by_method[name].nunique() > 1).any()]


def speedup_over(results: Results, parameter: str) -> Figure:
    """Speed-up against a swept parameter, a panel per data set, with intervals."""
    datasets = _datasets(results.summary)
    figure, (axes,) = style.panels(1, len(datasets), *_size(len(datasets), 4.4))
    looks, dashes = _looks(results.summary, parameter), _dashes(results.summary, parameter)
    for panel, dataset in zip(axes, datasets, strict=True):
        cells = results.summary[results.summary["dataset"] == dataset]
        _references(panel, cells, parameter, dashes)
        for label, series in _series(cells, parameter):
            _with_interval(panel, series[parameter].astype(float), series, label, looks[label])
        _parameter_axis(panel, cells, parameter)
        panel.set_title(dataset)
        panel.set_ylabel("speed-up over plain decoding (×)")
    _share_y(axes)
    _finish(figure, axes[0], results, f"Speed-up over {SYMBOLS[parameter]}")
    return figure


def step_compression_over(results: Results, parameter: str) -> Figure:
    """Step compression S above, step cost c below: the speed-up is S / c."""
    datasets = _datasets(results.summary)
    figure, grid = style.panels(2, len(datasets), *_size(len(datasets), 6.6))
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
        _share_y(line)
    for panel, dataset in zip(grid[0], datasets, strict=True):
        panel.set_title(dataset)
    _finish(figure, grid[0][0], results, f"Step compression S and step cost c over {SYMBOLS[parameter]}")
    return figure


def speedup_grid(results: Results, swept: list[str]) -> Figure:
    """Heat maps of the best speed-up: a line of panels per data set, a panel per value of a third parameter."""
    across, down, *rest = swept
    cells = results.summary.dropna(subset=["speedup", *swept])
    datasets = _datasets(cells)
    thirds = sorted(cells[rest[0]].unique()) if rest else [None]
    figure, grid = style.panels(
        len(datasets), len(thirds), 2.0 + 3.2 * len(thirds), 1.4 + 3.0 * len(datasets)
    )
    # The middle of the colours is 1.0: what is slower than plain decoding has the other hue.
    spread = max(0.05, float((cells["speedup"] - 1).abs().max()))
    norm = TwoSlopeNorm(1.0, 1.0 - spread, 1.0 + spread)
    for line, dataset in zip(grid, datasets, strict=True):
        for panel, third in zip(line, thirds, strict=True):
            chosen = cells[cells["dataset"] == dataset]
            title = dataset
            if third is not None:
                chosen = chosen[chosen[rest[0]] == third]
                title = f"{dataset}, {SYMBOLS[rest[0]]} = {third}"
            panel.set_title(title)
            if chosen.empty:
                panel.set_axis_off()
                continue
            table = chosen.pivot_table(index=down, columns=across, values="speedup", aggfunc="max")
            values = table.to_numpy(dtype=float)
            image = panel.imshow(values, norm=norm, cmap="PuOr", aspect="auto", origin="lower")
            for (y, x), value in np.ndenumerate(values):
                if np.isfinite(value):
                    shade = "white" if abs(value - 1) > 0.6 * spread else "black"
                    panel.text(x, y, f"{value:.2f}", ha="center", va="center", color=shade, fontsize=10)
            panel.set_xticks(range(len(table.columns)), [str(value) for value in table.columns])
            panel.set_yticks(range(len(table.index)), [str(value) for value in table.index])
            panel.grid(False)
            panel.set_xlabel(PARAMETERS[across])
            panel.set_ylabel(PARAMETERS[down])
    figure.colorbar(image, ax=np.array(grid), label="speed-up over plain decoding (×)", shrink=0.8)
    symbols = ", ".join(SYMBOLS[name] for name in swept)
    figure.suptitle(_title(results, f"Speed-up over {symbols}"))
    return figure


def speedup_by_method(results: Results) -> Figure:
    """Every cell's speed-up with its interval; hollow where it can't be told from 1.0.

    At most the fastest MOST_BARS per data set.
    """
    datasets = _datasets(results.summary)
    shown = results.summary[~results.summary["is_baseline"]].dropna(subset="speedup")
    height = 1.9 + 0.34 * _most_bars(shown)
    figure, (axes,) = style.panels(1, len(datasets), *_size(len(datasets), height))
    for panel, dataset in zip(axes, datasets, strict=True):
        cells = shown[shown["dataset"] == dataset].nlargest(MOST_BARS, "speedup").iloc[::-1]
        panel.axvline(1.0, color=style.REFERENCE, linewidth=1.2)
        for place, cell in enumerate(cells.to_dict("records")):
            colour = style.CONTROL if cell["strategy"] == "vllm_control" else style.COLOURS[0]
            certain = cell["verdict"] in ("faster", "slower")
            low, high = cell["speedup_low"], cell["speedup_high"]
            panel.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
            panel.plot(
                cell["speedup"], place, "o", color=colour, markerfacecolor=colour if certain else "white"
            )
            panel.annotate(
                f"{cell['speedup']:.2f}×", (np.fmax(high, cell["speedup"]), place), (6, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
        panel.set_yticks(range(len(cells)), cell_labels(cells))
        panel.set_ylim(-0.7, len(cells) - 0.3)
        left, right = panel.get_xlim()
        panel.set_xlim(left, right + 0.18 * (right - left))
        panel.grid(False, axis="y")
        panel.set_xlabel("speed-up over plain decoding (×)")
        panel.set_title(dataset)
    figure.suptitle(_title(results, "Speed-up by method") + "\nhollow: can't tell from 1.0")
    return figure


def acceptance_histogram(results: Results) -> Figure:
    """Per cell the share of its steps that emitted 1, 2, 3, … tokens (the bonus token included).

    Methods that drafted, at most the first MOST_BARS of them per data set.
    """
    drafting = results.summary[results.summary["drafted"] > 0]
    datasets = _datasets(drafting) or _datasets(results.summary)
    height = 2.3 + 0.36 * _most_bars(drafting)
    figure, (axes,) = style.panels(1, len(datasets), *_size(len(datasets), height))
    most = int(min(MOST_ACCEPTED, results.steps["accepted"].max()))
    colours = style.sequential(most)
    for panel, dataset in zip(axes, datasets, strict=True):
        cells = drafting[drafting["dataset"] == dataset].head(MOST_BARS).iloc[::-1]
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
        panel.set_yticks(range(len(cells)), cell_labels(cells))
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
    figure.suptitle(_title(results, "Acceptance histogram"))
    return figure


def _most_bars(cells: pd.DataFrame) -> int:
    counts = cells.groupby("dataset").size()
    return min(MOST_BARS, int(counts.max())) if len(counts) else 1


def _shares(steps: pd.DataFrame, cell_id: str, most: int) -> np.ndarray:
    accepted = steps.loc[steps["cell_id"] == cell_id, "accepted"].to_numpy()
    counts = np.bincount(np.minimum(accepted, most), minlength=most + 1)[1:]
    return counts / max(1, counts.sum())


def _series(cells: pd.DataFrame, parameter: str) -> list[tuple[str, pd.DataFrame]]:
    """The methods that sweep ``parameter``: label (method and what is fixed), cells in its order."""
    swept = cells.dropna(subset=[parameter])
    series = []
    fixed = [name for name in PARAMETERS if name != parameter]
    for (strategy, executor, *values), group in swept.groupby(
        ["strategy", "executor", *fixed], dropna=False, sort=False
    ):
        if group[parameter].nunique() < 2:
            continue
        parts = [f"{SYMBOLS[n]}={v}" for n, v in zip(fixed, values, strict=True) if not pd.isna(v)]
        label = strategy + (f" ({', '.join(parts)})" if parts else "")
        label += ", fork" if executor == "fork" else ""
        series.append((label, group.sort_values(parameter)))
    return series


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


def _share_y(axes: list[Axes]) -> None:
    low = min(panel.get_ylim()[0] for panel in axes)
    high = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(low, high)


def _finish(figure: Figure, axes: Axes, results: Results, title: str) -> None:
    figure.suptitle(_title(results, title))
    style.legend_below(figure, axes)


def _title(results: Results, title: str) -> str:
    models = ", ".join(results.rows["model"].unique())
    dtypes = ", ".join(results.rows["dtype"].unique())
    return f"{title}: {models}, {dtypes}"


def _datasets(summary: pd.DataFrame) -> list[str]:
    return list(summary["dataset"].unique())


def _size(columns: int, height: float) -> tuple[float, float]:
    return (2.0 + 4.2 * columns, height)
