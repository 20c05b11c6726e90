"""The two figures of a comparison: before against after, and the history of one machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lookahead_bench.regress.compare import Comparison
from lookahead_bench.report import style


def before_after(comparison: Comparison, path: Path) -> None:
    """Speed-up and S of every cell before (hollow) and after (filled), a line of panels per data set."""
    datasets = list(dict.fromkeys(cell.dataset for cell in comparison.cells))
    most = max(sum(cell.dataset == dataset for cell in comparison.cells) for dataset in datasets)
    with style.applied():
        figure, grid = style.panels(len(datasets), 2, 10.5, 1.2 + len(datasets) * (0.9 + 0.32 * most))
        for line, dataset in zip(grid, datasets, strict=True):
            cells = [cell for cell in comparison.cells if cell.dataset == dataset]
            places = np.arange(len(cells))
            for panel, name, title in zip(line, ("speedup", "step_compression"), ("speed-up (×)", "S (tokens per step)")):
                old, new = np.array([getattr(cell, name) for cell in cells], dtype=float).T
                panel.hlines(places, old, new, color=style.CONTROL, linewidth=3)
                panel.plot(old, places, "o", markersize=11, markerfacecolor="white", color=style.REFERENCE, label="before")
                panel.plot(new, places, "o", color=style.COLOURS[0], label="after")
                panel.set_yticks(places, [cell.label for cell in cells])
                panel.invert_yaxis()
                panel.set_xlabel(title)
            for place, cell in enumerate(cells):
                if cell.speed in ("slower", "faster"):
                    line[0].annotate(cell.speed, (cell.speedup[1], place), xytext=(8, -4), textcoords="offset points", size=9)
            line[1].tick_params(labelleft=False)
            line[0].set_title(dataset)
        style.legend_below(figure, grid[0][0])
        figure.savefig(path)


def trend(history: pd.DataFrame, machine: str, path: Path) -> None:
    """Speed-up of every method over the runs of one machine, with intervals, a panel per data set."""
    own = history[(history["machine"] == machine) & ~history["is_baseline"].astype(bool)]
    runs = list(dict.fromkeys(own["run"]))
    datasets = list(dict.fromkeys(own["dataset"]))
    if not datasets:
        return
    with style.applied():
        figure, (line,) = style.panels(1, len(datasets), 2.0 + 4.6 * len(datasets), 4.8)
        looks = dict(zip(dict.fromkeys(own["label"]), style.looks(), strict=False))
        for panel, dataset in zip(line, datasets, strict=True):
            panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2)
            groups = own[own["dataset"] == dataset].groupby("label", sort=False)
            for shift, (label, cells) in zip(np.linspace(-0.15, 0.15, groups.ngroups), groups):
                values = cells[["speedup", "speedup_low", "speedup_high"]].to_numpy(float)
                reach = np.abs(values[:, 1:] - values[:, :1]).T
                places = [runs.index(run) + shift for run in cells["run"]]
                panel.errorbar(places, values[:, 0], reach, label=label, capsize=3, **looks[label])
            panel.set_xlim(-0.5, len(runs) - 0.5)
            panel.set_xticks(range(len(runs)), [_name(own, run) for run in runs], rotation=30, ha="right")
            panel.set_title(dataset)
            panel.set_ylabel("speed-up over plain decoding (×)")
        style.legend_below(figure, line[0])
        figure.savefig(path)


def _name(history: pd.DataFrame, run: str) -> str:
    first = history[history["run"] == run].iloc[0]
    commit = first["commit"] if isinstance(first["commit"], str) else ""
    return " ".join(filter(None, (str(first["started_at"])[:10], commit[:7]))) or run
