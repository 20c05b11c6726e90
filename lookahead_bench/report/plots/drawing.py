"""A figure with its data, and how both are stored: PNG and SVG at paper quality, CSV."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lookahead_bench.report import style


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure.

    Attributes:
        figure: as it is saved.
        data: the numbers in it, a line per mark.
    """

    figure: Figure
    data: pd.DataFrame

    def save(self, folder: Path, name: str) -> Path:
        """Write ``name.png``, ``name.svg`` and ``name.csv`` into ``folder``; returns the PNG file."""
        with style.applied():
            path = folder / f"{name}.png"
            self.figure.savefig(path, dpi=style.PAPER_DOTS_PER_INCH)
            # Laid out once: the second file is the first one's picture.
            self.figure.set_layout_engine("none")
            # No date and no addresses: the same results give the same file.
            self.figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        self.data.to_csv(folder / f"{name}.csv", index=False)
        return path

    def _repr_png_(self) -> bytes:
        """How a notebook shows it."""
        buffer = io.BytesIO()
        with style.applied():
            self.figure.savefig(buffer, format="png", dpi=style.SCREEN_DOTS_PER_INCH)
        return buffer.getvalue()
