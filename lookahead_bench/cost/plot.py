"""The figure of a cost sweep: c(T) by executor, a line per context."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lookahead_bench.report import style


def draw_cost(table: pd.DataFrame, folder: Path) -> Path:
    """Draw ``cost.png`` and ``cost.svg`` into ``folder`` from what `curve.cost_table` makes; returns the PNG."""
    groups = list(table.groupby(["executor", "shape", "top_k"], sort=False))
    with style.applied():
        figure, (axes,) = style.panels(1, len(groups), 4.8 * len(groups), 4.4)
        for panel, ((executor, shape, top_k), lines) in zip(axes, groups, strict=True):
            for number, (context, curve) in enumerate(lines.groupby("context")):
                color, sizes = f"C{number}", curve["in_flight"]
                panel.fill_between(sizes, curve["ratio_low"], curve["ratio_high"], color=color, alpha=0.2, linewidth=0)
                panel.plot(sizes, curve["ratio"], marker="o", markersize=3, color=color, label=f"{context} tokens of context")
            panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2)
            panel.set_title(f"{executor}, {shape} drafts" + (f", top {top_k} read" if top_k else ""))
            panel.set_xlabel("T (tokens in flight)")
        axes[0].set_ylabel("c(T) (cost of a step, × a plain step of the engine)")
        axes[0].legend()
        top = max(panel.get_ylim()[1] for panel in axes)
        for panel in axes:
            panel.set_ylim(0, top)
        dtypes = ", ".join(sorted(table["dtype"].unique()))
        figure.suptitle(f"Step cost over tokens in flight, {dtypes}; bands: 95 % intervals")
        for ending in ("svg", "png"):
            path = folder / f"cost.{ending}"
            figure.savefig(path)
    return path
