"""One run as one HTML file that needs nothing else: verdict, tables, figures, provenance."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import yaml

from lookahead_bench.quality.words import pass_at_1
from lookahead_bench.report import load, plots, solved, table, words
from lookahead_bench.report.predictions import predictions
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
        verdicts=words.verdicts(results) + words.against_stock(results) + load.sentences(results) + pass_at_1(results.summary),
        warnings=words.warnings(results),
        wrong=[("Mismatches", words.mismatches(results)), ("Failures", words.failures(results))],
        left=table.LEFT_ALIGNED,
        sections=_sections(results),
        trust=words.kernels(results) + words.control(results) + words.noise_floor(results) + predictions(results),
        figures=_figures(folder / "plots"),
        config=yaml.safe_dump(results.config, sort_keys=False, allow_unicode=True),
        provenance=json.dumps(results.provenance, indent=2, ensure_ascii=False, default=str),
    )


def _sections(results: Results) -> list[dict[str, object]]:
    """What the page has tables of: title, tables, legend."""
    by_dataset = [(str(dataset), cells) for dataset, cells in results.summary.groupby("dataset", sort=False)]
    main = [_table(table.title(name, results), table.headings(results), table.lines(cells, results)) for name, cells in by_dataset]
    sections = [{"title": "Results", "tables": main, "legend": table.legend(results)}]
    if load.is_loaded(results):
        several = [
            _table(title, headings, lines)
            for name, cells in by_dataset
            for title, headings, lines in load.tables(name, cells)
        ]
        sections.append({"title": "Several requests at once", "tables": several, "legend": load.LEGEND})
    if solved.has_passes(results):
        passes = [_table(f"{name}: pass@1", solved.HEADINGS, lines) for name, cells in by_dataset if (lines := solved.lines(cells))]
        sections.append({"title": "Problems solved", "tables": passes, "legend": solved.LEGEND})
    return sections


def _table(title: str, headings: Sequence[str], lines: list[tuple[str, ...]]) -> dict[str, object]:
    kinds = [line[headings.index("verdict")] if "verdict" in headings else "" for line in lines]
    return {"title": title, "headings": headings, "lines": list(zip(kinds, lines, strict=True))}


def _figures(folder: Path) -> list[dict[str, str]]:
    paths = sorted(folder.glob("*.png"), key=lambda path: (plots.place(path.stem), path.stem))
    return [{"name": path.stem, "caption": plots.caption(path.stem), "address": _address(path)} for path in paths]


def _address(path: Path) -> str:
    """The picture itself as an address: its SVG file, which stays sharp in print, else the PNG."""
    drawn = path.with_suffix(".svg")
    kind, path = ("svg+xml", drawn) if drawn.is_file() else ("png", path)
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
