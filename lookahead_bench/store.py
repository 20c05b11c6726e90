"""The run folder: what a run has measured, durable from the instant a row is finished.

``rows.parquet`` and ``steps.parquet`` are checkpoints, each replaced as a whole, so they can be
read at every instant. What came after the last checkpoint is in ``journal.jsonl``: one line per
addition, on disk before `ResultStore.add` returns. A checkpoint is written at every addition for
as long as that is cheap, and otherwise as often as keeps it under a tenth of the run's time; a
reader that wants the last row as well takes `load_results`, which folds the journal in.
"""

from __future__ import annotations

import fcntl
import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lookahead_bench.decomposition import TEXT_COLUMNS
from lookahead_bench.errors import InputError
from lookahead_bench.files import AppendOnly, replace
from lookahead_bench.tables import (
    Key,
    Tables,
    full_row,
    key_of,
    rows_batch,
    step_columns,
    steps_batch,
    to_parquet,
)

_CHEAP_SECONDS = 0.02  # a checkpoint that takes no longer is written at every addition
_SHARE = 0.1  # of the run's time that longer ones may take


@dataclass(frozen=True, slots=True)
class Results:
    """A run as it was stored.

    Attributes:
        rows: one line per (cell, prompt, turn, repeat); columns of `tables.ROWS_SCHEMA`.
        steps: one line per decoding step; columns of `tables.STEPS_SCHEMA`.
        summary: one line per cell; see `stats.summarise`.
        config: the resolved configuration.
        provenance: where, when and with what the run was made.
        folder: the run's folder.
    """

    rows: pd.DataFrame
    steps: pd.DataFrame
    summary: pd.DataFrame
    config: dict[str, Any]
    provenance: dict[str, Any]
    folder: Path


class ResultStore:
    """Writer of one run folder; made by `open_run`, held by one process at a time."""

    def __init__(self, folder: Path, lock: io.TextIOWrapper) -> None:
        self.folder = folder
        self._lock = lock
        for stray in folder.glob("*.tmp"):
            stray.unlink()
        self._tables, journal_size = Tables.read(folder)
        self._journal = AppendOnly(folder / "journal.jsonl", journal_size)
        self._checkpoint_cost = self._checkpoint_at = 0.0
        self.checkpoint()

    @classmethod
    def open_run(
        cls, results_dir: str | Path, sweep: str, plan_id: str, *, fresh: bool = False
    ) -> ResultStore:
        """The folder to work in: the newest one of the same plan, to be completed, else a new one.

        A folder that another live process works in is never shared: a new one is made.

        Args:
            results_dir: where the runs of all sweeps are kept.
            sweep: name of the sweep; "" for a single run (folder "single").
            plan_id: identity of the work; equal plans resume each other.
            fresh: make a new folder even if there is one of the same plan.

        Raises:
            OSError: the folder can't be made or written.
        """
        parent = Path(results_dir) / (sweep or "single")
        parent.mkdir(parents=True, exist_ok=True)
        # Held until the folder is locked, so that two commands can't choose the same one.
        with _locked(parent / ".lock", wait=True):
            folder, lock = None, None
            known = [] if fresh else sorted(parent.glob(f"*-{_short(plan_id)}*"), reverse=True)
            for candidate in known:
                if _read_json(candidate / "plan.json").get("plan_id") == plan_id:
                    folder, lock = candidate, _locked(candidate / ".lock")
                if lock:
                    break
            if not lock:
                folder = _new_folder(parent, plan_id)
                lock = _locked(folder / ".lock", wait=True)
                replace(folder / "plan.json", json.dumps({"plan_id": plan_id, "sweep": sweep}).encode())
        (folder / "plots").mkdir(exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        return cls(folder, lock)

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def done(self) -> set[Key]:
        """Keys of the rows that need no further work; a failed row is not among them, it is tried again."""
        return {key for key, row in self._tables.rows.items() if row["error"] is None}

    def row(self, key: Key) -> Mapping[str, Any] | None:
        """The stored row of ``key``, None if there is none."""
        return self._tables.rows.get(key)

    def rows(self) -> list[Mapping[str, Any]]:
        """All stored rows."""
        return list(self._tables.rows.values())

    def add(self, row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]] = ()) -> None:
        """Store a finished row with its decoding steps; on disk when this returns.

        Args:
            row: columns of ROWS_SCHEMA; those left out are null. May replace a failed row.
            steps: in order; columns of STEPS_SCHEMA that the row doesn't give itself.

        Raises:
            ValueError: an unknown column, a value of the wrong type, or the row is stored already.
            OSError: it can't be written; everything stored before is intact.
        """
        self.add_all([(row, steps)])

    def add_all(
        self, entries: Iterable[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]
    ) -> None:
        """Store several finished rows at once: after a crash all of them are there, or none."""
        added = []
        for values, steps in entries:
            row, columns = full_row(values), step_columns(steps)
            stored = self.row(key_of(row))
            if stored and stored["error"] is None:
                raise ValueError(f"{key_of(row)} is stored already")
            # Encoded before anything is written: a value of the wrong type must not reach the journal.
            rows_batch([row]), steps_batch(row, columns)
            added.append({"row": row, "steps": columns})
        self._write({"add": added})

    def amend(self, changes: Mapping[Key, Mapping[str, Any]]) -> None:
        """Set columns of stored rows, all of them at once; raises as `add` does."""
        if changes:
            rows_batch([full_row({**self._tables.rows[key], **new}) for key, new in changes.items()])
            self._write({"amend": [[list(key), dict(new)] for key, new in changes.items()]})

    def checkpoint(self) -> None:
        """Bring ``rows.parquet`` and ``steps.parquet`` up to date."""
        begun = time.perf_counter()
        # Steps first: a row that a reader finds in rows.parquet has its steps in steps.parquet.
        replace(self.folder / "steps.parquet", to_parquet(self._tables.steps_table()))
        replace(self.folder / "rows.parquet", to_parquet(self._tables.rows_table()))
        self._checkpoint_at = time.perf_counter()
        self._checkpoint_cost = self._checkpoint_at - begun

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows and steps stored so far."""
        return self._tables.frames()

    def write_summary(self, summary: pd.DataFrame) -> None:
        """Write ``summary.csv``."""
        replace(self.folder / "summary.csv", summary.to_csv(index=False).encode())

    def write_config(self, config: str) -> None:
        """Write ``config.yaml``; ``config`` is YAML text."""
        replace(self.folder / "config.yaml", config.encode())

    def write_provenance(self, record: Mapping[str, Any]) -> None:
        """Merge ``record`` into ``provenance.json``, its top-level keys replacing older ones."""
        merged = {**self.provenance(), **record}
        replace(self.folder / "provenance.json", (json.dumps(merged, indent=2, default=str) + "\n").encode())

    def provenance(self) -> dict[str, Any]:
        """What ``provenance.json`` holds so far."""
        return _read_json(self.folder / "provenance.json")

    def close(self) -> None:
        """Write the last checkpoint and let go of the folder."""
        if self._lock.closed:
            return
        try:
            self.checkpoint()
            self._journal.clear()
        finally:
            self._journal.close()
            self._lock.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._journal.append((json.dumps(entry, separators=(",", ":")) + "\n").encode())
        self._tables.replay(entry)
        since = time.perf_counter() - self._checkpoint_at
        if self._checkpoint_cost <= max(_CHEAP_SECONDS, _SHARE * since):
            self.checkpoint()


def load_results(path: str | Path) -> Results:
    """Read a run folder, finished or not: what a killed run had finished is there.

    Raises:
        InputError: ``path`` is no run folder.
    """
    from lookahead_bench.stats import summarise

    folder = Path(path)
    if not (folder / "rows.parquet").is_file():
        raise InputError(f"{folder}: must be the folder of a run (one that has rows.parquet)")
    rows, steps = Tables.read(folder)[0].frames()
    config = _read_yaml(folder / "config.yaml")
    provenance = _read_json(folder / "provenance.json")
    summary = _read_summary(folder / "summary.csv")
    # Of one row alone: the columns are the same, and no interval has to be found.
    columns = summarise(rows.iloc[:1], steps.iloc[:0], 0).columns
    if summary is None or not _is_of(summary, rows) or (len(rows) and list(summary.columns) != list(columns)):
        # A run that was killed before its end has no summary of its rows yet, one of another version other columns.
        seed = int((config.get("run") or {}).get("seed") or 0)
        summary = summarise(rows, steps, seed, provenance.get("step_costs") or ())
    return Results(rows, steps, summary, config, provenance, folder)


def _short(plan_id: str) -> str:
    return plan_id[:10]


def _new_folder(parent: Path, plan_id: str) -> Path:
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{_short(plan_id)}"
    folder, count = parent / name, 1
    while folder.exists():
        count += 1
        folder = parent / f"{name}-{count}"
    folder.mkdir()
    return folder


def _locked(path: Path, *, wait: bool = False) -> io.TextIOWrapper | None:
    """An open file that holds the lock; None if another process holds it and ``wait`` is false.

    The kernel lets go of the lock when its holder dies, however it dies.
    """
    lock = open(path, "a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"{path} can't be read: {' '.join(str(error).split())}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(path.read_text()) if path.is_file() else {}
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path} can't be read: {' '.join(str(error).split())}") from error


def _read_summary(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    integers = dict.fromkeys(("window", "ngram", "branches"), "Int64")
    texts = dict.fromkeys(("verdict", "note", *TEXT_COLUMNS), "str")
    try:
        summary = pd.read_csv(path, dtype=integers | texts)
    except ValueError as error:
        raise InputError(f"{path} can't be read: {' '.join(str(error).split())}") from error
    # A column of empty texts is read as missing values, not as texts.
    return summary.fillna(dict.fromkeys(texts, ""))


def _is_of(summary: pd.DataFrame, rows: pd.DataFrame) -> bool:
    """Whether a summary counts just these rows; a later run that was killed may have stored more."""
    if not {"cell_id", "rows_measured", "failures"} <= set(summary.columns):
        return False
    failed = rows["error"].notna().groupby(rows["cell_id"])
    return {cell: (len(errors), int(errors.sum())) for cell, errors in failed} == {
        cell: (int(good + wrong), int(wrong))
        for cell, good, wrong in zip(summary["cell_id"], summary["rows_measured"], summary["failures"])
    }
