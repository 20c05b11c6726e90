"""Every cell's speed-up, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import MOST_BARS, dataset_names, first_of, labelled, most_bars, size, titled
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results


def speedup_by_method(results: Results) -> Drawing:
    """Every cell's speed-up with its interval; hollow where it can't be told from 1.0.

    At most the fastest MOST_BARS per data set.
    """
    datasets = dataset_names(results.summary)
    shown = results.summary[~results.summary["is_baseline"]].dropna(subset="speedup")
    height = 1.9 + 0.34 * most_bars(shown)
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), height))
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
        panel.set_yticks(range(len(cells)), labelled(cells)["name"])
        panel.set_ylim(-0.7, len(cells) - 0.3)
        left, right = panel.get_xlim()
        panel.set_xlim(left, right + 0.18 * (right - left))
        panel.grid(False, axis="y")
        panel.set_xlabel("speed-up over plain decoding (×)")
        panel.set_title(dataset)
    figure.suptitle(titled(results, "Speed-up by method") + "\nhollow: can't tell from 1.0" + first_of(shown, "fastest"))
    columns = ["dataset", "name", "executor", "tokens_per_second", "speedup", "speedup_low", "speedup_high", "verdict", "prompts"]
    return Drawing(figure, labelled(shown)[columns])
