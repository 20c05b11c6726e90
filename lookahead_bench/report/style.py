"""How the figures look: one palette, one set of markers, one font size for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/): told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
REFERENCE = "#666666"
DASHES = ("--", ":", "-.")
CONTROL = "#BBBBBB"
SEQUENTIAL = "viridis"
# The palette's hues, light enough for black text on them.
TINTS = ("#A9D3EE", "#F5C08A", "#A5DDC8", "#E9BFD8", "#F7E38C")
DOTS_PER_INCH = 150
SCREEN_DOTS_PER_INCH = 80
PAPER_DOTS_PER_INCH = 300

_SETTINGS = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
    "hatch.linewidth": 0.6,
    # Text as outlines, so that a page looks the same with any fonts; the same names in every file.
    "svg.fonttype": "path",
    "svg.hashsalt": "lookahead-bench",
}


def applied() -> AbstractContextManager[None]:
    """Use these looks for what is drawn and saved within; the caller's own settings come back after."""
    return mpl.rc_context(_SETTINGS)


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure of ``rows`` by ``columns`` panels, ``width`` by ``height`` inches in all."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(line) for line in grid]


def looks() -> Iterator[dict[str, str]]:
    """Colour and marker for one series after the other; they only come together again after 49."""
    for turn in range(len(MARKERS)):
        for place, colour in enumerate(COLOURS):
            yield {"color": colour, "marker": MARKERS[(place + turn) % len(MARKERS)]}


def legend_below(figure: Figure, *axes: Axes) -> None:
    """One legend for all panels, below them, with what ``axes`` show."""
    shown = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    columns = min(4, max(1, len(shown)))
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=columns)


def sequential(count: int) -> list[tuple[float, float, float, float]]:
    """``count`` colours from dark to light, in an order that greyscale keeps."""
    shades = mpl.colormaps[SEQUENTIAL]
    return [shades(place / max(1, count - 1)) for place in range(count)]
