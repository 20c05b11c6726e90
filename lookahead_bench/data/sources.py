"""Rows of a data set, read with the ``datasets`` library from a package, a JSONL file or the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.hub import hub_revision, is_offline, one_line
from lookahead_bench.models import package_file

Row = tuple[str, Mapping[str, object]]
"""Where a row stands, for messages ("FILE line 3"), and the row."""


def read_rows(name: str, source: Mapping[str, object], path: object) -> Iterator[Row]:
    """All rows of the data set ``name``.

    Args:
        source: its entry below ``dataset.sources``.
        path: ``dataset.path``, the file of a ``jsonl`` source.

    Raises:
        InputError: the file, package, or data set on the hub is missing or is not what it should be.
    """
    kind = source.get("kind")
    if kind == "package":
        return _package_rows(source)
    if kind == "jsonl":
        return _jsonl_rows(path)
    if kind == "hub":
        return _hub_rows(name, source)
    raise ConfigError(f"dataset.sources.{name}.kind", kind, "package, jsonl or hub")


def _load_dataset(*args: object, **options: object):
    """``datasets.load_dataset`` without its progress bars and chatter."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    return datasets.load_dataset(*args, **options)


def _stream_file(builder: str, path: Path, **options: object) -> Iterator[Mapping[str, object]]:
    """Rows of a local file. Streamed, because the library's cache of files knows nothing of edits."""
    return iter(_load_dataset(builder, data_files=str(path), split="train", streaming=True, **options))


def _package_rows(source: Mapping[str, object]) -> Iterator[Row]:
    path = package_file(str(source["package"]), str(source["file"]), str(source["sha256"]))
    for number, row in enumerate(_stream_file("json", path), start=1):
        yield f"{path.name} line {number}", row


def _jsonl_rows(path: object) -> Iterator[Row]:
    if not isinstance(path, str) or not path:
        raise ConfigError("dataset.path", path, "a JSONL file")
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError("dataset.path", path, "a JSONL file that exists")
    if file.stat().st_size == 0:
        return
    try:
        for number, line in enumerate(_stream_file("text", file, encoding="utf-8-sig"), start=1):
            if line["text"].strip():
                where = f"{path} line {number}"
                yield where, _json_object(line["text"], where)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {one_line(error)}") from error


def _json_object(text: str, where: str) -> Mapping[str, object]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise InputError(f"{where} can't be read: its values are nested too deeply") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} must be a JSON object, it is {type(row).__name__}")
    return row


def _hub_rows(name: str, source: Mapping[str, object]) -> Iterator[Row]:
    path = source.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError(f"dataset.sources.{name}.path", path, "the hub id of a data set, or a folder with one")
    if not Path(path).is_dir() and not is_offline():
        hub_revision(path, "dataset")
    try:
        rows = _load_dataset(path, source.get("name"), split=source.get("split"))
    except Exception as error:  # the library raises whatever its readers raise
        raise InputError(f"cannot load data set {path!r}: {one_line(error)}") from error
    for number, row in enumerate(rows):
        yield f"{path} row {number}", {"row number": number, **row}
