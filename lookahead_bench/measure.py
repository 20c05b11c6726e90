"""The measuring loop: every cell on every prompt, taking turns, and a verdict on every output.

Engines start; then each prompt is decoded by all cells one after another, in the order of
`schedule`. After that come two untimed passes of plain decoding: where an output differs, for its
top-2 margins; and once in a batch of another size, for the noise floor. A row is stored as
soon as it is finished, its verdict as soon as it can be told.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lookahead_bench import provenance
from lookahead_bench.asking import Asking
from lookahead_bench.engine.settings import is_plugin
from lookahead_bench.errors import EngineError, InputError
from lookahead_bench.fleet import Fleet
from lookahead_bench.progress import RunProgress
from lookahead_bench.records import Cell, Prompt
from lookahead_bench.rows import row_of
from lookahead_bench.schedule import Work, remaining, schedule
from lookahead_bench.verdicts import Verdicts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lookahead_bench.models import ModelSource
    from lookahead_bench.plan import Plan
    from lookahead_bench.store import ResultStore
    from lookahead_bench.tracking import Tracker

LOG_TAIL_LINES = 80
"""How much of an engine's log is kept beside the traceback of its failure."""


def measure(
    plan: Plan,
    prompts: Mapping[str, Sequence[Prompt]],
    tokenizer: PreTrainedTokenizerBase,
    store: ResultStore,
    tracker: Tracker,
    progress: RunProgress,
    log_dir: Path,
    model: ModelSource,
) -> None:
    """Do what is missing of a plan; a plan that is finished starts no engine.

    A request that fails, or an engine that dies, becomes a row with an error; the rest goes on.

    Args:
        plan: the cells and how to take turns among them.
        prompts: per data set.
        tokenizer: the model's.
        store: takes rows and verdicts; holds what an earlier run of the plan did.
        tracker: is told of each finished row.
        progress: is told of everything that takes time.
        log_dir: folder for the engines' logs and for tracebacks (``failures.txt``).
        model: what is measured.

    Raises:
        OSError: the store can't be written.
        KeyboardInterrupt: by the user; the engines are ended.
    """
    asking = Asking(plan, tokenizer, store)
    everything = schedule(plan, prompts)
    work = remaining(everything, store.done())
    total = sum(len(item.keys) for item in everything)
    # A row that failed for good, such as a prompt that is too long, is no reason to start an engine.
    needed = {
        item.cell.cell_id
        for item in work
        if any(asking.possible(item.cell, prompt, item.turn) for prompt in item.wanted)
    }
    _note_emptied_pools([cell for cell in plan.cells if cell.cell_id in needed and asking.earlier(cell)], store)
    with Fleet(
        log_dir, progress, lambda cell: asking.warm_up(cell, prompts[cell.dataset][0]), asking.earlier
    ) as fleet:
        verdicts = Verdicts(plan, prompts, store, asking, fleet.generate, progress)
        loop = _Loop(asking, fleet, verdicts, store, tracker, progress, log_dir, model.name)
        fleet.start(cell.engine for cell in plan.cells if cell.cell_id in needed)
        _note_engines(fleet, store)
        progress.begin(total, total - sum(len(item.keys) for item in work))
        for item in work:
            loop.do(item)
        verdicts.settle_divergent()
        noise = verdicts.measure_noise()
    _note_engines(fleet, store)
    store.write_provenance({"ended_at": provenance.now(), "noise_floor": noise})


def _note_engines(fleet: Fleet, store: ResultStore) -> None:
    """Write down what the engines say of themselves; those that only an earlier part of the run needed stay."""
    engines = {name: asdict(info) for name, info in fleet.infos.items()}
    store.write_provenance({"engines": {**store.provenance().get("engines", {}), **engines}})


def _note_emptied_pools(resumed: Sequence[Cell], store: ResultStore) -> None:
    """Write down which stock engines go on with an empty pool: theirs can't be filled from outside."""
    emptied = {f"{cell.dataset}, {cell.label}" for cell in resumed if cell.shares_pool and not is_plugin(cell.engine)}
    if emptied:
        store.write_provenance({"pools_emptied": sorted(emptied.union(store.provenance().get("pools_emptied", ())))})


class _Loop:
    """What one piece of work does; holds what all of them share."""

    def __init__(
        self,
        asking: Asking,
        fleet: Fleet,
        verdicts: Verdicts,
        store: ResultStore,
        tracker: Tracker,
        progress: RunProgress,
        log_dir: Path,
        model: str,
    ) -> None:
        self._asking, self._fleet, self._verdicts, self._store = asking, fleet, verdicts, store
        self._tracker, self._progress, self._log_dir, self._model = tracker, progress, log_dir, model
        self._said: set[tuple[str, str]] = set()

    def do(self, work: Work) -> None:
        """Decode one piece of work and store its rows."""
        cell = work.cell
        self._progress.working(f"{cell.label} · {cell.dataset} {work.wanted[0].prompt_id} turn {work.turn + 1}")
        started_at, load = provenance.now(), provenance.load_average()
        requests, generations, errors = {}, {}, {}
        wanted = {prompt.prompt_id for prompt in work.wanted}
        for prompt in work.prompts:
            try:
                requests[prompt.prompt_id] = self._asking.request(cell, prompt, work.turn, work.repeat)
            except InputError as failure:
                errors[prompt.prompt_id] = str(failure)
        if wanted & set(requests):
            try:
                answers = self._fleet.generate(cell, list(requests.values()), cell.concurrency)
                generations = dict(zip(requests, answers))
            except EngineError as failure:
                errors |= dict.fromkeys(requests, str(failure))
                self._keep_traceback(work, str(failure))
        entries = []
        for prompt in work.wanted:
            request = requests.get(prompt.prompt_id)
            row, steps = row_of(
                cell,
                prompt,
                model=self._model,
                turn=work.turn,
                repeat=work.repeat,
                group=work.group,
                prompt_tokens=len(request.prompt_token_ids) if request else None,
                started_at=started_at,
                load_average=load,
                loaded=provenance.is_loaded(load),
                generation=generations.get(prompt.prompt_id),
                error=errors.get(prompt.prompt_id),
            )
            entries.append((row | self._verdicts.of(row), steps))
        self._store.add_all(entries)
        self._tell(work)

    def _tell(self, work: Work) -> None:
        for key in work.keys:
            row = self._store.row(key)
            self._verdicts.watch(row)
            if work.cell.is_baseline and work.repeat == 0:
                self._verdicts.settle(key)
            if row["error"] and (key.cell_id, row["error"]) not in self._said:
                self._said.add((key.cell_id, row["error"]))
                self._progress.note(f"{work.cell.label}, {work.cell.dataset} {key.prompt_id}: {row['error']}")
            self._progress.row(row)
            self._tracker.row(row)

    def _keep_traceback(self, work: Work, message: str) -> None:
        """Add to ``failures.txt``: what failed, the traceback here, and the end of the engine's log."""
        if (work.cell.cell_id, message) in self._said:
            return
        where = ", ".join(prompt.prompt_id for prompt in work.prompts)
        log = self._fleet.log_of(work.cell.engine)
        tail = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if log.is_file() else []
        lines = [
            f"{provenance.now()} {work.cell.label} ({work.cell.cell_id}), {work.cell.dataset} {where}",
            traceback.format_exc().rstrip(),
            f"The end of {log}:",
            *tail,
        ]
        with open(self._log_dir / "failures.txt", "a", encoding="utf-8") as failures:
            failures.write("\n".join(lines) + "\n\n")
