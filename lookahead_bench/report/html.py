"""One run as one HTML file that needs nothing else: verdict, tables, figures, provenance."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import yaml

from lookahead_bench.report import plots, table, words
from lookahead_bench.report.template import PAGE

if TYPE_CHECKING:
    from lookahead_bench.store import Results


def write_html(results: Results) -> Path:
    """Write ``report.html`` into the run's folder, with the figures that its ``plots`` has."""
    path = Path(results.folder) / "report.html"
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(render(results), encoding="utf-8")
    temporary.replace(path)
    return path


def render(results: Results) -> str:
    """The page as text; all that comes from data, errors or settings is escaped."""
    folder = Path(results.folder)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(PAGE).render(
        heading=f"{folder.parent.name}: run {folder.name}",
        verdicts=words.verdicts(results) + words.against_stock(results),
        warnings=words.warnings(results),
        wrong=[("Mismatches", words.mismatches(results)), ("Failures", words.failures(results))],
        headings=table.headings(results),
        left=table.LEFT_ALIGNED,
        tables=_tables(results),
        legend=table.legend(results),
        trust=words.kernels(results) + words.control(results) + words.noise_floor(results),
        figures=_figures(folder / "plots"),
        config=yaml.safe_dump(results.config, sort_keys=False, allow_unicode=True),
        provenance=json.dumps(results.provenance, indent=2, ensure_ascii=False, default=str),
    )


def _tables(results: Results) -> list[dict[str, object]]:
    return [
        {"title": table.title(str(dataset), results), "lines": table.lines(cells, results)}
        for dataset, cells in results.summary.groupby("dataset", sort=False)
    ]


def _figures(folder: Path) -> list[dict[str, str]]:
    paths = sorted(folder.glob("*.png"), key=lambda path: (plots.place(path.stem), path.stem))
    return [{"name": path.stem, "caption": plots.caption(path.stem), "address": _address(path)} for path in paths]


def _address(path: Path) -> str:
    """The picture itself as an address: its SVG file, which stays sharp in print, else the PNG."""
    drawn = path.with_suffix(".svg")
    kind, path = ("svg+xml", drawn) if drawn.is_file() else ("png", path)
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
