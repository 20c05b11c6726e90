"""Stored runs by path."""

from __future__ import annotations

from pathlib import Path

from lookahead_bench.errors import InputError


def find_runs(path: Path) -> list[Path]:
    """The run folders at or below ``path``, oldest first.

    Raises:
        InputError: there is none.
    """
    if not path.is_dir():
        raise InputError(f"{path}: must be a folder with results")
    runs = sorted({found.parent for found in path.rglob("rows.parquet")}, key=lambda run: run.name)
    if not runs:
        raise InputError(f"{path}: must be a run's folder or hold one (no rows.parquet in it)")
    return runs
