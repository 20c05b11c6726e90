"""The figure of a cost sweep: c(T) by executor, a line per context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookahead_bench.cost.curve import cost_table
from lookahead_bench.report import style
from lookahead_bench.report.plots.common import titled
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results


def draw_cost(results: Results) -> Drawing | None:
    """c(T) with 95 % intervals as bands, a panel per executor and kind of draft; None if the run measured none."""
    table = cost_table(results.rows, results.steps, seed=int((results.config.get("run") or {}).get("seed") or 0))
    if table.empty:
        return None
    groups = list(table.groupby(["executor", "shape", "top_k"], sort=False))
    looks = dict(zip(sorted(table["context"].unique()), style.looks(), strict=False))
    figure, (axes,) = style.panels(1, len(groups), 1.0 + 4.6 * len(groups), 4.8)
    for panel, ((executor, shape, top_k), lines) in zip(axes, groups, strict=True):
        for context, curve in lines.groupby("context"):
            look, sizes = looks[context], curve["in_flight"]
            panel.fill_between(sizes, curve["ratio_low"], curve["ratio_high"], color=look["color"], alpha=0.2, linewidth=0)
            panel.plot(sizes, curve["ratio"], markersize=5, label=f"{context} tokens of context", **look)
        panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2)
        panel.set_title(f"{executor}, {shape} drafts" + (f", top {top_k} read" if top_k else ""))
        panel.set_xlabel("T (tokens in flight)")
        panel.set_xlim(left=0)
    axes[0].set_ylabel("c(T) (× a plain step of the same engine)")
    top = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(0, top)
    style.legend_below(figure, *axes)
    figure.suptitle(titled(results, "Step cost over tokens in flight") + "\nbands: 95 % intervals")
    return Drawing(figure, table)
