"""Reads an offline W&B run's own file back.

The file is a 7-byte header and a LevelDB log: blocks of 32 KiB with records of (crc 4 bytes, length
2 bytes little-endian, type 1 byte: full, first, middle or last), whose payloads are messages of type
``wandb.proto.wandb_internal_pb2.Record``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

FILE_HEADER_BYTES = 7
BLOCK_BYTES = 32 * 1024
RECORD_HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """What one run's file says, as plain Python values."""

    run_id: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    project: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    exit_code: int | None = None


def payloads(data: bytes) -> Iterator[bytes]:
    """The log's records, put together from their fragments."""
    offset, parts = FILE_HEADER_BYTES, []
    while offset + RECORD_HEADER.size <= len(data):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < RECORD_HEADER.size:
            offset += left
            continue
        _, length, kind = RECORD_HEADER.unpack_from(data, offset)
        if kind == 0:
            offset += left
            continue
        start = offset + RECORD_HEADER.size
        parts.append(data[start : start + length])
        offset = start + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def read_run(path: Path) -> OfflineRun:
    """Read one ``run-<id>.wandb``."""
    run = OfflineRun()
    for payload in payloads(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        run.kinds.append(kind)
        if kind == "run":
            run.run_id, run.name = record.run.run_id, record.run.display_name
            run.group, run.job_type = record.run.run_group, record.run.job_type
            run.project, run.tags = record.run.project, list(record.run.tags)
            run.config.update(_values(record.run.config.update))
        elif kind == "config":
            run.config.update(_values(record.config.update))
        elif kind == "history":
            run.history.append(_values(record.history.item))
        elif kind == "summary":
            run.summary.update(_values(record.summary.update))
        elif kind == "metric":
            run.metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "files":
            run.files.extend(item.path for item in record.files.files)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
