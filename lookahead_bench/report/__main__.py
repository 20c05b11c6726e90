"""``python -m lookahead_bench.report RESULTS…``: table, figures and report.html of stored runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lookahead_bench.errors import InputError
from lookahead_bench.report.html import write_html
from lookahead_bench.report.plots import draw_all
from lookahead_bench.report.runs import find_runs
from lookahead_bench.report.table import print_table
from lookahead_bench.store import load_results


def main(arguments: Sequence[str] | None = None) -> int:
    """Report on every run below the given folders; 0, or 2 if one of them has none."""
    parser = argparse.ArgumentParser(
        prog="python -m lookahead_bench.report",
        description="Print the table, draw the figures and write report.html of finished or running sweeps.",
    )
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a run's folder, or one that holds runs"
    )
    given = parser.parse_args(arguments).results
    console = Console()
    try:
        runs = [run for path in given for run in find_runs(path)]
        for run in runs:
            results = load_results(run)
            figures = draw_all(results)
            page = write_html(results)
            print_table(results, console)
            for path in (*figures, page):
                console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
