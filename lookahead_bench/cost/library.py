"""Measured curves on disk: written by a cost sweep, found again by what they were measured on.

``<results_dir>/cost/curves/<model>-<dtype>-<executor>-<key>.json``. The key is a hash of all that moves
a step's cost: machine, model, dtype, executor, threads, kernels, compilation and vLLM's version. So a
curve of other circumstances is never found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookahead_bench import provenance
from lookahead_bench.errors import InputError
from lookahead_bench.files import replace
from lookahead_bench.records import EngineSpec

if TYPE_CHECKING:
    import pandas as pd

    from lookahead_bench.models import ModelSource
    from lookahead_bench.plan import Plan

FOLDER = Path("cost") / "curves"
SHAPE, TOP_K = "binary", 0
"""Of the drafts whose curve a method gets, where several kinds were measured."""

Points = list[list[float]]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All that moves the cost of a step by its size; curves of equal circumstances are exchangeable.

    Attributes:
        machine: as `provenance.machine_of` tells it.
        model: its digest.
        threads: OpenMP threads of the engine.
        vllm: its version; None where it can't be told.
    """

    machine: tuple[object, ...]
    model: str
    dtype: str
    executor: str
    threads: int
    native_kernels: bool
    enforce_eager: bool
    extra: str
    vllm: str | None

    @classmethod
    def of(cls, engine: EngineSpec, model: ModelSource) -> Circumstances:
        """Those of an engine that would be started here and now."""
        here = provenance.machine_of({"cpu": provenance.cpu(), "gpus": provenance.gpus()})
        threads = engine.threads or int(os.environ.get("OMP_NUM_THREADS") or provenance.usable_cores() or 1)
        extra = json.dumps(dict(engine.extra), sort_keys=True, default=str)
        return cls(
            here, model.digest or model.path, engine.dtype, engine.executor, threads, engine.native_kernels,
            engine.enforce_eager, extra, provenance.versions().get("vllm"),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def key(self) -> str:
        """Twelve hexadecimal digits that stand for all of them."""
        text = json.dumps(self.as_json(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def save_curves(table: pd.DataFrame, plan: Plan, model: ModelSource, folder: Path, results_dir: Path) -> list[Path]:
    """Write a file per executor of a cost sweep, replacing that of the same circumstances.

    Args:
        table: as `curve.cost_table` makes it.
        folder: of the run, which the file names.

    Raises:
        OSError: it can't be written.
    """
    from lookahead_bench.cost.curve import points

    written = []
    for engine in plan.engines:
        own = table[(table["executor"] == engine.executor) & (table["shape"] == SHAPE) & (table["top_k"] == TOP_K)]
        if own.empty:
            continue
        found = Circumstances.of(engine, model)
        record = {
            "measured_on": found.as_json(),
            "run": folder.name,
            "measured_at": provenance.now(),
            "curves": {str(context): points(lines) for context, lines in own.groupby("context")},
            "plain_over_stock": {str(context): _plain_over_stock(lines) for context, lines in own.groupby("context")},
        }
        path = _path(found, model.name, results_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, (json.dumps(record, indent=2, default=str) + "\n").encode())
        written.append(path)
    return written


def find_curve(engine: EngineSpec, model: ModelSource, results_dir: Path) -> Path | None:
    """The file with the curves of an engine that would be started here; None if there is none."""
    path = _path(Circumstances.of(engine, model), model.name, results_dir)
    return path if path.is_file() else None


def read_curve(path: Path, context: int) -> Points:
    """The curve whose context is nearest to ``context`` tokens, as pairs of size and cost.

    Raises:
        InputError: the file holds no curves.
    """
    try:
        curves: Mapping[str, Points] = json.loads(path.read_text())["curves"]
        nearest = min(curves, key=lambda measured: (abs(int(measured) - context), int(measured)))
        return [[int(size), float(cost)] for size, cost in curves[nearest]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: must be a file of curves as +sweep=cost writes it ({type(error).__name__})") from error


def read_stock_costs(path: Path) -> dict[str, Points]:
    """What a step costs by its size against a plain step of stock decoding, by tokens of context.

    A curve's own costs are relative to a plain step of the plug-in, which costs more than one of stock decoding.

    Returns:
        The contexts in which stock decoding was measured too; empty for a file of an earlier version.

    Raises:
        InputError: the file holds no curves.
    """
    try:
        record = json.loads(path.read_text())
        ratios = record.get("plain_over_stock") or {}
        return {
            context: [[int(size), float(cost) * ratios[context]] for size, cost in curve]
            for context, curve in record["curves"].items()
            if ratios.get(context)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: must be a file of curves as +sweep=cost writes it ({type(error).__name__})") from error


def step_costs(engines: Iterable[EngineSpec], model: ModelSource, results_dir: Path, run: str) -> list[dict[str, Any]]:
    """The stored curves of a run's engines against stock decoding, plain values: what its speed-ups are predicted from.

    Args:
        run: name of the run's folder; a curve that it measured itself predicts nothing.

    Raises:
        InputError: a file that is found holds no curves.
    """
    found = []
    for engine in engines:
        path = find_curve(engine, model, results_dir) if engine.executor != "stock" else None
        curves = read_stock_costs(path) if path else {}
        record = json.loads(path.read_text()) if path else {}
        if curves and record.get("run") != run:
            about = {"executor": engine.executor, "dtype": engine.dtype, "file": str(path)}
            found.append(about | {key: record.get(key) for key in ("run", "measured_at")} | {"curves": curves})
    return found


def _plain_over_stock(lines: pd.DataFrame) -> float | None:
    """A plain step of the plug-in over one of stock decoding; None where that was not measured."""
    ratio = float(lines.loc[lines["in_flight"] == 1, "stock_ratio"].iloc[0])
    return round(ratio, 4) if isfinite(ratio) else None


def _path(found: Circumstances, model: str, results_dir: Path) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in model)
    return results_dir / FOLDER / f"{name}-{found.dtype}-{found.executor}-{found.key()}.json"
