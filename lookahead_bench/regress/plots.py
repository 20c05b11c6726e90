"""The two figures of a comparison: before against after, and the history of one machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lookahead_bench.regress.compare import Comparison
from lookahead_bench.report import style


def before_after(comparison: Comparison, path: Path) -> Path:
    """Speed-up and S of every cell before (hollow) and after (filled), a line of panels per data set; returns ``path``."""
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
    return path


def trend(history: pd.DataFrame, machine: str, path: Path) -> Path | None:
    """Speed-up with intervals, and S below, of every method over the runs of one machine; a column of panels per data set.

    Returns ``path``, or None, with no file there, if that machine has nothing to show.
    """
    path.unlink(missing_ok=True)
    own = history[(history["machine"] == machine) & ~history["is_baseline"].astype(bool)].dropna(subset="speedup")
    runs = list(dict.fromkeys(own["run"]))
    datasets = list(dict.fromkeys(own["dataset"]))
    if not datasets:
        return None
    own = own.assign(line=_lines(own))
    with style.applied():
        figure, grid = style.panels(2, len(datasets), 2.0 + 4.6 * len(datasets), 7.6)
        looks = dict(zip(dict.fromkeys(own["line"]), style.looks(), strict=False))
        for (upper, lower), dataset in zip(zip(*grid), datasets, strict=True):
            groups = own[own["dataset"] == dataset].groupby("line", sort=False)
            for shift, (line, cells) in zip(np.linspace(-0.15, 0.15, groups.ngroups), groups):
                values = cells[["speedup", "speedup_low", "speedup_high"]].to_numpy(float)
                reach = np.abs(values[:, 1:] - values[:, :1]).T
                places = [runs.index(run) + shift for run in cells["run"]]
                upper.errorbar(places, values[:, 0], reach, label=line, capsize=3, **looks[line])
                lower.plot(places, cells["step_compression"].astype(float), **looks[line])
            for panel in (upper, lower):
                panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2)
                panel.set_xlim(-0.5, len(runs) - 0.5)
                panel.set_xticks(range(len(runs)), [_name(own, run) for run in runs], rotation=30, ha="right")
            upper.tick_params(labelbottom=False)
            upper.set_title(dataset)
            upper.set_ylabel("speed-up over plain decoding (×)")
            lower.set_ylabel("S (tokens per step)")
        style.legend_below(figure, *grid[0])
        figure.suptitle(f"History on {machine}")
        figure.savefig(path)
    return path


def _lines(cells: pd.DataFrame) -> list[str]:
    """A name per cell: its label, numbered where the same label stands for other work."""
    known: dict[str, list[object]] = {}
    names = []
    for label, work in zip(cells["label"], cells["work"].fillna("")):
        works = known.setdefault(label, [])
        if work not in works:
            works.append(work)
        number = works.index(work) + 1
        names.append(label if number == 1 else f"{label} (other settings, {number})")
    return names


def _name(history: pd.DataFrame, run: str) -> str:
    first = history[history["run"] == run].iloc[0]
    commit = first["commit"] if isinstance(first["commit"], str) else ""
    return " ".join(filter(None, (str(first["started_at"])[:10], commit[:7]))) or run
