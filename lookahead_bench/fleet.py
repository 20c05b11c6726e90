"""The engine processes of a run: all alive, one at work, the others waiting."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from lookahead_bench.engine import EngineProcess
from lookahead_bench.engine.settings import is_plugin
from lookahead_bench.errors import EngineError
from lookahead_bench.progress import RunProgress
from lookahead_bench.records import Cell, EarlierOutputs, EngineInfo, EngineSpec, Generation, Request

MAX_CRASHES = 2
"""How often a cell may bring its engine down before the rest of it is given up."""


class Fleet:
    """Engines by their spec; a context manager that ends them all, Ctrl-C included.

    Two processes that decode at once slow each other down many times over, so nothing here ever
    runs beside anything else: engines start one after another, and `generate` returns before the
    next engine is asked.

    Args:
        log_dir: folder for the engines' logs.
        progress: is told what is being started.
        warm_up: the requests that warm an engine up for a cell. Their results are dropped.
        earlier: the outputs that a cell with a shared pool already has, the earliest first: a process that
            starts in the middle of a run goes on with them in its pool.
    """

    def __init__(
        self,
        log_dir: Path,
        progress: RunProgress,
        warm_up: Callable[[Cell], Sequence[Request]],
        earlier: Callable[[Cell], Sequence[tuple[int, ...]]] = lambda cell: (),
    ) -> None:
        self._log_dir = log_dir
        self._progress = progress
        self._warm_up = warm_up
        self._earlier = earlier
        self._processes: dict[str, EngineProcess] = {}
        self._names: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._warm: set[tuple[str, str]] = set()
        self._crashes: Counter[str] = Counter()
        self.infos: dict[str, EngineInfo] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()

    def start(self, specs: Iterable[EngineSpec]) -> None:
        """Start an engine for each distinct spec. One that can't start fails its cells, not the run."""
        distinct = list({_identity(spec): spec for spec in specs}.values())
        for number, spec in enumerate(distinct, 1):
            try:
                self._started(spec, f", {number} of {len(distinct)}")
            except EngineError as failure:
                self._progress.note(str(failure))

    def generate(self, cell: Cell, requests: Sequence[Request], concurrency: int) -> list[Generation]:
        """Run requests of a cell on its engine, warmed up for the cell's method first.

        Raises:
            EngineError: the engine died (it is started again when it is next needed), could not
                start, or this cell has brought it down MAX_CRASHES times already.
        """
        if self._crashes[cell.cell_id] >= MAX_CRASHES:
            raise EngineError(f"given up: {cell.label} has brought its engine down {MAX_CRASHES} times")
        process = self._started(cell.engine)
        try:
            # With more requests at once other shapes run for the first time.
            method = (_identity(cell.engine), f"{_identity(cell.strategy)} {cell.concurrency}")
            if method not in self._warm:
                process.generate(self._warm_up(cell), concurrency)  # dropped: not a measurement
                self._refill(process, cell)
                self._warm.add(method)
            return process.generate(list(requests), concurrency)
        except EngineError:
            self._crashes[cell.cell_id] += 1
            self._discard(cell.engine)
            raise

    def _refill(self, process: EngineProcess, cell: Cell) -> None:
        # vLLM's own pool can't be filled from outside.
        if cell.shares_pool and is_plugin(cell.engine) and (outputs := tuple(self._earlier(cell))):
            process.remember(EarlierOutputs(cell.strategy, outputs))

    def log_of(self, spec: EngineSpec) -> Path:
        """Where the engine's log is."""
        name = self._names.setdefault(_identity(spec), self._free_name(spec.role))
        return self._log_dir / f"engine-{name}.log"

    def _started(self, spec: EngineSpec, place: str = "") -> EngineProcess:
        key = _identity(spec)
        if key in self._broken:
            raise EngineError(self._broken[key])
        if key not in self._processes:
            compiles = "" if spec.enforce_eager else " (compiling takes minutes the first time)"
            self._progress.phase(f"starting engine {spec.role}{place}{compiles}")
            process = EngineProcess(spec, self.log_of(spec))
            # Known before it starts, so that it is ended if the user doesn't want to wait.
            self._processes[key] = process
            try:
                self.infos[self._names[key]] = process.start()
            except EngineError as failure:
                self._discard(spec)
                self._broken[key] = str(failure)
                raise
        return self._processes[key]

    def _discard(self, spec: EngineSpec) -> None:
        key = _identity(spec)
        self._processes.pop(key).close()
        self._warm = {method for method in self._warm if method[0] != key}

    def _free_name(self, role: str) -> str:
        taken = set(self._names.values())
        return next(
            name for number in range(1, len(taken) + 2)
            if (name := role if number == 1 else f"{role}-{number}") not in taken
        )  # fmt: skip


def _identity(settings: object) -> str:
    return json.dumps(dataclasses.asdict(settings), sort_keys=True, default=str)
