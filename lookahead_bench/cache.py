"""Folders that are made once and kept: published whole or not at all, by one process at a time."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from lookahead_bench.errors import InputError

_MANIFEST = "manifest.json"


def cache_dir() -> Path:
    """Where conversions are kept: ``$LOOKAHEAD_BENCH_CACHE``, or ``~/.cache/lookahead-bench``."""
    configured = os.environ.get("LOOKAHEAD_BENCH_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lookahead-bench"


def find_folder(kind: str, name: str) -> Path | None:
    """The finished folder ``<cache>/<kind>/<name>``; None if it isn't there or not as it was published."""
    folder = cache_dir() / kind / name
    return folder if _is_complete(folder) else None


def make_folder(kind: str, name: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``<cache>/<kind>/<name>``, made by ``fill`` if it isn't there yet.

    ``fill`` writes into an empty folder beside it, which is renamed when it is done, so nobody ever
    sees half of it. Processes that ask at the same time wait for the one that fills.

    Raises:
        InputError: the cache can't be written (disk full, no permission). What ``fill`` raises
            besides OSError goes through. Nothing is left behind in either case.
    """
    root = cache_dir() / kind
    folder = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            if not _is_complete(folder):
                _fill_and_publish(folder, fill)
    except OSError as error:
        raise InputError(
            f"cannot write the cache {root}: {error.strerror or error} "
            "(LOOKAHEAD_BENCH_CACHE names another place)"
        ) from error
    return folder


def _fill_and_publish(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a fresh folder and rename it to ``folder``; the caller holds the lock."""
    prefix = f".{folder.name}-"
    for leftover in folder.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(leftover)
    if folder.exists():
        shutil.rmtree(folder)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        fill(partial)
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        (partial / _MANIFEST).write_text(json.dumps(sizes, indent=1))
        for file in partial.iterdir():
            file.chmod(0o644)
        partial.chmod(0o755)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    """Whether every file that was published is there in its size (a crash can truncate files)."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
