"""The history of runs: one line per run and cell in a CSV file, added to by every comparison."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd

from lookahead_bench.errors import InputError
from lookahead_bench.files import replace
from lookahead_bench.provenance import machine_of
from lookahead_bench.regress.compare import SAME_CELL
from lookahead_bench.report.words import cell_labels
from lookahead_bench.store import Results

COLUMNS = (
    "run", "started_at", "commit", "machine", "dataset", "label", "work", "is_baseline", "speedup", "speedup_low", "speedup_high",
    "step_compression", "step_cost", "equivalence_rate",
)  # fmt: skip
"""``work``: a hash of what SAME_CELL names but the data set; equal for cells whose figures belong on one line."""


def add_runs(path: Path, runs: list[Results]) -> pd.DataFrame:
    """Add runs, in place of what the history had of them; returns all of it, oldest run first.

    A run that was resumed has other figures than when it was first added.

    Raises:
        InputError: the file is there and is no history.
    """
    known = _read(path)
    new = {name_of(run): _lines(run) for run in runs}
    others = known[~known["run"].isin(list(new))]
    history = pd.concat([table for table in (others, *new.values()) if len(table)])
    history = history.sort_values("started_at", kind="stable")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, history.to_csv(index=False).encode())
    return history


def name_of(run: Results) -> str:
    """What the history calls a run: the names of its sweep and of its folder."""
    return "/".join(run.folder.resolve().parts[-2:])


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    try:
        history = pd.read_csv(path, dtype=dict.fromkeys(("run", "commit", "label", "work"), str))
    except ValueError as error:
        raise InputError(f"{path} can't be read: {' '.join(str(error).split())}") from error
    # Histories of earlier versions don't say which settings a line had.
    history = history.assign(work="") if "work" not in history else history
    if missing := [name for name in COLUMNS if name not in history]:
        raise InputError(f"{path}: must have the column {missing[0]}, as a history has")
    return history


def _lines(run: Results) -> pd.DataFrame:
    summary = run.summary
    works = {cell_id: _work(cell.iloc[0]) for cell_id, cell in run.rows.groupby("cell_id")}
    processor, cores, gpus = machine_of(run.provenance)
    own = {
        "run": name_of(run),
        "started_at": run.provenance.get("started_at") or "",
        "commit": (run.provenance.get("git") or {}).get("commit") or "",
        "machine": " ".join(map(str, (processor, cores, *gpus))),
        "label": cell_labels(summary),
        "work": [works[cell_id] for cell_id in summary["cell_id"]],
    }
    return summary.assign(**own)[list(COLUMNS)]


def _work(row: pd.Series) -> str:
    settings = [row[name] for name in SAME_CELL if name != "dataset"]
    return hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:8]
