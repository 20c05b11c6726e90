"""Heat maps of the speed-up where two or three parameters are swept together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import TwoSlopeNorm

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import PARAMETERS, SYMBOLS, titled, variants
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results


def speedup_grid(results: Results, swept: list[str]) -> Drawing:
    """Heat maps of the speed-up, "?" where it can't be told from 1.0.

    A line of panels per data set and method, a panel per value of a third parameter.
    """
    across, down, *rest = swept
    cells = results.summary.dropna(subset=["speedup", *swept])
    cells = cells.assign(name=variants(cells))
    places = list(cells[["dataset", "name"]].drop_duplicates().itertuples(index=False, name=None))
    several = cells["name"].nunique() > 1
    thirds = sorted(cells[rest[0]].unique()) if rest else [None]
    figure, grid = style.panels(len(places), len(thirds), 2.0 + 3.2 * len(thirds), 1.6 + 3.0 * len(places))
    # The middle of the colours is 1.0: what is slower than plain decoding has the other hue.
    spread = max(0.05, float((cells["speedup"] - 1).abs().max()))
    norm = TwoSlopeNorm(1.0, 1.0 - spread, 1.0 + spread)
    for line, (dataset, name) in zip(grid, places, strict=True):
        for panel, third in zip(line, thirds, strict=True):
            chosen = cells[(cells["dataset"] == dataset) & (cells["name"] == name)]
            heading = f"{dataset}, {name}" if several else dataset
            if third is not None:
                chosen = chosen[chosen[rest[0]] == third]
                heading = f"{heading}, {SYMBOLS[rest[0]]} = {third}"
            panel.set_title(heading)
            if chosen.empty:
                panel.set_axis_off()
                continue
            table = chosen.pivot(index=down, columns=across, values="speedup")
            verdicts = chosen.pivot(index=down, columns=across, values="verdict")
            values = table.to_numpy(dtype=float)
            image = panel.imshow(values, norm=norm, cmap="PuOr", aspect="auto", origin="lower")
            for (y, x), value in np.ndenumerate(values):
                if np.isfinite(value):
                    shade = "white" if abs(value - 1) > 0.6 * spread else "black"
                    panel.text(x, y, f"{value:.2f}" + "?" * (verdicts.iat[y, x] == "can't tell"), ha="center", va="center", color=shade, fontsize=10)
            panel.set_xticks(range(len(table.columns)), [str(value) for value in table.columns])
            panel.set_yticks(range(len(table.index)), [str(value) for value in table.index])
            panel.grid(False)
            panel.set_xlabel(PARAMETERS[across])
            panel.set_ylabel(PARAMETERS[down])
    figure.colorbar(image, ax=np.array(grid), label="speed-up over plain decoding (×)", shrink=0.8)
    symbols = ", ".join(SYMBOLS[name] for name in swept)
    figure.suptitle(titled(results, f"Speed-up over {symbols}") + "\n?: can't tell from 1.0")
    return Drawing(figure, cells[["dataset", "name", *swept, "speedup", "speedup_low", "speedup_high", "verdict"]])
