"""``python -m lookahead_bench.regress --baseline A --current B``: did a change make decoding worse or slower?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lookahead_bench.errors import InputError
from lookahead_bench.files import replace
from lookahead_bench.regress import plots
from lookahead_bench.regress.compare import compare
from lookahead_bench.regress.history import add_runs, name_of
from lookahead_bench.regress.words import markdown, verdict
from lookahead_bench.report.runs import find_runs
from lookahead_bench.store import Results, load_results


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two runs; 0 without a regression, 1 with one, 2 if they can't be compared."""
    parser = argparse.ArgumentParser(
        prog="python -m lookahead_bench.regress",
        description="Compare a run with a baseline. Tokens, steps, acceptance and equality are gated exactly, "
        "speed-ups by the interval of their change. Exit status: 0 no regression, 1 a regression, 2 bad input.",
    )
    parser.add_argument("--baseline", type=Path, required=True, metavar="DIR", help="a run's folder, or one that holds runs: the newest")
    parser.add_argument("--current", type=Path, required=True, metavar="DIR", help="the same, of the run that is judged")
    parser.add_argument("--exact-only", action="store_true", help="show times, but let them decide nothing (shared machines)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where regress.md and the figures go (default: CURRENT/regress)")
    parser.add_argument("--history", type=Path, metavar="FILE", help="CSV that keeps the history of runs (default: OUT/history.csv)")
    given = parser.parse_args(arguments)
    try:
        before, after = _newest(given.baseline), _newest(given.current)
        comparison = compare(before, after)
        out = given.out or after.folder / "regress"
        out.mkdir(parents=True, exist_ok=True)
        history = add_runs(given.history or out / "history.csv", [before, after])
        passed, _ = verdict(comparison, given.exact_only)
        text = markdown(comparison, str(before.folder), str(after.folder), given.exact_only)
        replace(out / "regress.md", text.encode())
        written = [out / "regress.md", plots.before_after(comparison, out / "before_after.png")]
        machine = history.loc[history["run"] == name_of(after), "machine"].iloc[0]
        written.append(plots.trend(history, machine, out / "trend.png"))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text)
    for path in filter(None, written):
        print(path)
    return 0 if passed else 1


def _newest(path: Path) -> Results:
    return load_results(find_runs(path)[-1])


if __name__ == "__main__":
    sys.exit(main())
