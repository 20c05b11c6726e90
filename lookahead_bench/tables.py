"""Rows and decoding steps in memory, as their Arrow schemas say, and how a run folder gives them back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lookahead_bench.errors import InputError

ROWS_SCHEMA = pa.schema(
    [
        ("cell_id", pa.string()),
        ("model", pa.string()),
        ("label", pa.string()),
        ("dataset", pa.string()),
        ("prompt_id", pa.string()),
        ("category", pa.string()),
        ("turn", pa.int64()),
        ("strategy", pa.string()),
        ("parameters", pa.string()),  # JSON: the strategy's parameters, all of them
        ("window", pa.int64()),
        ("ngram", pa.int64()),
        ("branches", pa.int64()),
        ("executor", pa.string()),
        ("dtype", pa.string()),
        ("concurrency", pa.int64()),
        ("temperature", pa.float64()),
        ("max_new_tokens", pa.int64()),
        ("is_baseline", pa.bool_()),
        ("shared_pool", pa.bool_()),  # outputs of earlier prompts serve later ones
        ("repeat", pa.int64()),
        ("load_group", pa.int64()),  # prompts of one repeat and turn that were handed over together
        ("prompt_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("decode_steps", pa.int64()),
        ("drafted_tokens", pa.int64()),
        ("accepted_tokens", pa.int64()),  # on top of the one token that every pass gives
        ("nodes", pa.float64()),  # mean tokens in flight per step, the root included
        ("queued_seconds", pa.float64()),  # waiting for its turn, with others in flight
        ("prefill_seconds", pa.float64()),
        ("decode_seconds", pa.float64()),
        ("finish_reason", pa.string()),
        ("token_ids", pa.list_(pa.int64())),
        ("text", pa.string()),
        ("passed", pa.bool_()),  # the problem's own tests, where they were run; null where not
        ("test_outcome", pa.string()),
        ("equivalence", pa.string()),
        ("first_divergence", pa.int64()),
        ("divergence_margin", pa.float64()),
        ("equivalence_note", pa.string()),
        ("identical_other_batch", pa.bool_()),  # baseline only: same tokens in batches of other sizes
        ("other_batches", pa.string()),  # JSON: by batch size the first token that differs there, null for none
        ("error", pa.string()),
        ("started_at", pa.string()),  # ISO 8601, UTC
        ("load_average", pa.float64()),  # of the last minute, before the row
        ("loaded", pa.bool_()),  # whether that is more than the run itself makes
    ]
)

STEPS_SCHEMA = pa.schema(
    [
        ("cell_id", pa.string()),
        ("dataset", pa.string()),
        ("prompt_id", pa.string()),
        ("turn", pa.int64()),
        ("repeat", pa.int64()),
        ("step", pa.int64()),
        ("in_flight", pa.int64()),
        ("accepted", pa.int64()),
        ("seconds", pa.float64()),
        ("draft_seconds", pa.float64()),
        ("forward_seconds", pa.float64()),
        ("verify_seconds", pa.float64()),
        ("commit_seconds", pa.float64()),
        ("emitted_at_seconds", pa.float64()),  # from the request's first token on
        ("depth", pa.int64()),  # how far down drafted tokens were tried
        ("matched", pa.int64()),  # how many of them were accepted
    ]
)

NULLABLE_INTEGERS = (
    "window", "ngram", "branches", "new_tokens", "decode_steps", "drafted_tokens", "accepted_tokens",
    "first_divergence",
)  # fmt: skip
"""Columns that come back as pandas' Int64, because a row may have no value there."""

_STEP_VALUES = STEPS_SCHEMA.names[6:]  # what the row and the step's place don't give
_CHUNK = 256  # rows per cached batch: what one addition has to encode again


class Key(NamedTuple):
    """What identifies a row within a run."""

    cell_id: str
    prompt_id: str
    turn: int
    repeat: int


class Tables:
    """Rows by key, in the order of their first addition, and their steps."""

    def __init__(self) -> None:
        self.rows: dict[Key, dict[str, Any]] = {}
        self._order: dict[Key, int] = {}
        self._chunks: list[pa.RecordBatch | None] = []
        self._sealed_steps: list[pa.RecordBatch] = []
        self._tail_steps: list[pa.RecordBatch] = []
        self._with_steps: set[Key] = set()

    @classmethod
    def read(cls, folder: Path) -> tuple[Tables, int]:
        """What is in a run folder: its checkpoint, then its journal.

        Returns:
            The tables, and how many bytes of the journal are whole lines.
        """
        # The journal first: a checkpoint written in between then only repeats what it holds.
        journal = folder / "journal.jsonl"
        content = journal.read_bytes() if journal.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        tables = cls()
        for row in _read(folder / "rows.parquet", ROWS_SCHEMA).to_pylist():
            tables.put(row)
        steps = _read(folder / "steps.parquet", STEPS_SCHEMA)
        tables._sealed_steps = steps.to_batches()
        keys = steps.select(list(Key._fields)).group_by(list(Key._fields)).aggregate([])
        tables._with_steps = {key_of(row) for row in keys.to_pylist()}
        for line in whole.splitlines():
            tables.replay(json.loads(line))
        return tables, len(whole)

    def replay(self, entry: Mapping[str, Any]) -> None:
        """Apply a line of the journal; applying it twice changes nothing more."""
        for added in entry.get("add", ()):
            self.put(added["row"], added["steps"])
        for key, values in entry.get("amend", ()):
            self.put({**self.rows[Key(*key)], **values})

    def put(self, row: dict[str, Any], steps: Mapping[str, list] | None = None) -> None:
        """Add a row, or put it in the place of the one with its key; ``steps`` by column.

        Only a failed row, which has no steps, is ever done again: steps are added once and stay.
        """
        key = key_of(row)
        place = self._order.setdefault(key, len(self._order))
        self.rows[key] = row
        if place // _CHUNK == len(self._chunks):
            self._chunks.append(None)
        self._chunks[place // _CHUNK] = None
        if steps and steps["in_flight"] and key not in self._with_steps:
            self._with_steps.add(key)
            self._tail_steps.append(steps_batch(row, steps))
            if len(self._tail_steps) == _CHUNK:
                tail = pa.Table.from_batches(self._tail_steps).combine_chunks()
                self._sealed_steps += tail.to_batches()
                self._tail_steps = []

    def rows_table(self) -> pa.Table:
        """All rows, columns of ROWS_SCHEMA."""
        if None in self._chunks:
            keys = list(self._order)
            for index, chunk in enumerate(self._chunks):
                if chunk is None:
                    part = keys[index * _CHUNK : (index + 1) * _CHUNK]
                    self._chunks[index] = rows_batch([self.rows[key] for key in part])
        return pa.Table.from_batches(self._chunks, ROWS_SCHEMA)

    def steps_table(self) -> pa.Table:
        """All steps, columns of STEPS_SCHEMA."""
        return pa.Table.from_batches(self._sealed_steps + self._tail_steps, STEPS_SCHEMA)

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows and steps for pandas; columns of NULLABLE_INTEGERS are Int64."""
        rows = self.rows_table()
        frame = rows.to_pandas()
        for name in NULLABLE_INTEGERS:
            frame[name] = pd.array(rows[name].to_pylist(), dtype="Int64")
        return frame, self.steps_table().to_pandas()


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row (or of a step)."""
    return Key(row["cell_id"], row["prompt_id"], row["turn"], row["repeat"])


def full_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """``row`` with every column of ROWS_SCHEMA, null where it has none.

    Raises:
        ValueError: a column that the schema doesn't have.
    """
    if unknown := set(row) - set(ROWS_SCHEMA.names):
        raise ValueError(f"rows have no column {', '.join(sorted(unknown))}")
    full = {name: row.get(name) for name in ROWS_SCHEMA.names}
    full["token_ids"] = [int(token) for token in full["token_ids"] or ()]
    return full


def step_columns(steps: Sequence[Mapping[str, Any]]) -> dict[str, list]:
    """Steps by column: the columns of STEPS_SCHEMA that a row doesn't give; 0 where left out."""
    return {name: [step.get(name, 0) for step in steps] for name in _STEP_VALUES}


def rows_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Full rows as Arrow; a value of the wrong type raises pyarrow.ArrowInvalid or ArrowTypeError."""
    return pa.RecordBatch.from_pylist(rows, schema=ROWS_SCHEMA)


def steps_batch(row: Mapping[str, Any], columns: Mapping[str, list]) -> pa.RecordBatch:
    """The steps of one row as Arrow."""
    count = len(columns["in_flight"])
    same = {name: [row[name]] * count for name in ("cell_id", "dataset", "prompt_id", "turn", "repeat")}
    # A journal of an earlier version lacks columns: null, which is no zero.
    missing = {name: [None] * count for name in _STEP_VALUES if name not in columns}
    return pa.RecordBatch.from_pydict({**same, "step": list(range(count)), **missing, **columns}, schema=STEPS_SCHEMA)


def to_parquet(table: pa.Table) -> memoryview:
    """The bytes of a parquet file."""
    sink = pa.BufferOutputStream()
    # Dictionaries pay where values repeat; for clock readings they only cost time.
    repeated = [field.name for field in table.schema if field.type in (pa.string(), pa.int64())]
    pq.write_table(table, sink, use_dictionary=repeated)
    return memoryview(sink.getvalue())


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    if not path.is_file():
        return schema.empty_table()
    try:
        return pq.read_table(path, schema=schema)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} can't be read: {' '.join(str(error).split())}") from error
