"""What several requests at once get and yield: two tables, latency and throughput, and where a method stops paying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookahead_bench.load import LATENCIES, PERCENTILES
from lookahead_bench.report.words import cell_labels
from lookahead_bench.stats import NO_DRAFTS_EXPECTED

if TYPE_CHECKING:
    from lookahead_bench.store import Results

THROUGHPUT_HEADINGS = ("method", "at once", "in flight", "groups", "tokens/s", "against plain", "verdict")
LATENCY_HEADINGS = ("method", "at once", *(f"{name.upper()} {'/'.join(map(str, PERCENTILES))}" for name in LATENCIES))
LEGEND = (
    "tokens/s: of all requests together, while as many are in flight as there should be; in flight: how many that were; "
    "groups: of prompts that were handed over together (one at once: prompts), fewer than 5 decide nothing. "
    "Latencies in ms, percentiles 50/90/99 over requests and, for ITL, over emissions. TTFT: time to a request's first token. "
    "TPOT: seconds per token after it. ITL: time between two emissions, of which each may have several tokens."
)


def is_loaded(results: Results) -> bool:
    """Whether any cell had several requests at once."""
    cells = results.summary
    return not cells.empty and "throughput" in cells and bool((cells["concurrency"] > 1).any() and cells["throughput"].notna().any())


def throughput_lines(cells: pd.DataFrame) -> list[tuple[str, ...]]:
    """One data set's throughput as text, a line per cell."""
    return [
        (
            label,
            str(cell["concurrency"]),
            _number(cell["requests_in_flight"], 1),
            str(cell["throughput_groups"]),
            _number(cell["throughput"], 1),
            "1" if cell["is_baseline"] else _interval(cell),
            "baseline" if cell["is_baseline"] else str(cell["throughput_verdict"]),
        )
        for label, cell in _labelled(cells)
    ]


def latency_lines(cells: pd.DataFrame) -> list[tuple[str, ...]]:
    """One data set's latencies as text, a line per cell: milliseconds."""
    return [
        (
            label,
            str(cell["concurrency"]),
            *(
                " / ".join(_number(1000 * cell[f"{name}_p{percent}_seconds"], 0 if name == "ttft" else 1) for percent in PERCENTILES)
                for name in LATENCIES
            ),
        )
        for label, cell in _labelled(cells)
    ]


def sentences(results: Results) -> list[str]:
    """Per data set and method, with how many requests at once it yields more than plain decoding."""
    if not is_loaded(results):
        return []
    said = []
    for dataset, cells in results.summary.groupby("dataset", sort=False):
        verdicts: dict[str, dict[int, str]] = {}
        for label, cell in _labelled(cells):
            if cell["strategy"] not in NO_DRAFTS_EXPECTED and pd.notna(cell["throughput_ratio"]):
                verdicts.setdefault(label, {})[int(cell["concurrency"])] = str(cell["throughput_verdict"])
        said += [f"{dataset}: {label} {stops_paying(by_number)}" for label, by_number in verdicts.items()]
    return said


def stops_paying(verdicts: Mapping[int, str]) -> str:
    """In words from how many requests at once on a method no longer yields more tokens/s than plain decoding.

    Args:
        verdicts: ``faster``, ``slower`` or ``can't tell``, by requests at once; at least one.
    """
    numbers = sorted(verdicts)
    parts = [
        f"{meaning} with {_listed([number for number in numbers if verdicts[number] == kind])}"
        for kind, meaning in (("faster", "more tokens/s"), ("slower", "fewer"), ("can't tell", "it can't be told"))
        if kind in verdicts.values()
    ]
    paying = [number for number in numbers if verdicts[number] == "faster"]
    after = [number for number in numbers if number > max(paying, default=0)]
    lost = [number for number in after if verdicts[number] == "slower"]
    if not paying:
        end = "nowhere is it certain to pay"
    elif not after:
        end = f"it still pays with {numbers[-1]}"
    elif lost == after:
        end = f"it stops paying between {paying[-1]} and {after[0]}"
    else:
        end = f"that it pays is certain up to {paying[-1]}" + (f", that it doesn't from {lost[0]} on" if lost else "")
    return f"against plain decoding with as many requests at once: {', '.join(parts)}; {end}."


def tables(dataset: str, cells: pd.DataFrame) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """One data set's two tables: title, headings, lines."""
    return [
        (f"{dataset}: throughput of all requests together", THROUGHPUT_HEADINGS, throughput_lines(cells)),
        (f"{dataset}: latency of a request, ms", LATENCY_HEADINGS, latency_lines(cells)),
    ]


def print_load(results: Results, console: Console) -> None:
    """Print throughput and latency of each data set, if any cell had several requests at once."""
    if not is_loaded(results):
        return
    for dataset, cells in results.summary.groupby("dataset", sort=False):
        for title, headings, lines in tables(str(dataset), cells):
            table = Table(
                title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
            )
            for heading in headings:
                table.add_column(heading, justify="left" if heading in ("method", "verdict") else "right", no_wrap=True)
            for line in lines:
                # Text, so that a name with brackets in it is not read as markup.
                table.add_row(*map(Text, line))
            console.print(table, highlight=False)
            console.print()
    console.print(LEGEND, style="dim", markup=False, highlight=False)


def _labelled(cells: pd.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """The cells with their names, which don't say how many requests there were at once."""
    found = []
    for _, part in cells.groupby("concurrency", sort=True):
        found += list(zip(cell_labels(part), part.to_dict("records"), strict=True))
    return found


def _listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _interval(cell: Mapping[str, Any]) -> str:
    ratio = _number(cell["throughput_ratio"], 2)
    if pd.isna(cell["throughput_low"]):
        return ratio
    return f"{ratio} [{cell['throughput_low']:.2f}, {cell['throughput_high']:.2f}]"


def _number(value: float, digits: int) -> str:
    return "–" if pd.isna(value) else f"{value:.{digits}f}"
