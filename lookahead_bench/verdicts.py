"""Verdicts on the outputs of a run, and how often plain decoding differs from itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lookahead_bench.asking import Asking
from lookahead_bench.equivalence import (
    IDENTICAL,
    MISMATCH,
    UNCHECKED,
    Equivalence,
    MarginPass,
    first_divergence,
    judge,
)
from lookahead_bench.errors import EngineError, InputError
from lookahead_bench.progress import RunProgress
from lookahead_bench.records import Cell, Generation, Prompt, Request
from lookahead_bench.report.words import plural
from lookahead_bench.schedule import schedule
from lookahead_bench.tables import Key, key_of

if TYPE_CHECKING:
    from lookahead_bench.plan import Plan
    from lookahead_bench.store import ResultStore

NOISE_PROMPTS = 16
"""Prompts per data set that the noise floor is taken from."""
NOISE_BATCHES = (1, 4, 8)
"""Requests at once in those passes: the first NOISE_PASSES of them that the timed pass does not have."""
NOISE_PASSES = 2

Generate = Callable[[Cell, Sequence[Request], int], list[Generation]]
Row = Mapping[str, Any]


class Verdicts:
    """Compares rows with the baseline's. Where an output differs, the margin is looked up at the end.

    Args:
        generate: runs requests of a cell; raises EngineError.
    """

    def __init__(
        self,
        plan: Plan,
        prompts: Mapping[str, Sequence[Prompt]],
        store: ResultStore,
        asking: Asking,
        generate: Generate,
        progress: RunProgress,
    ) -> None:
        self._plan, self._prompts, self._store = plan, prompts, store
        self._asking, self._generate, self._progress = asking, generate, progress
        self._cells = {cell.cell_id: cell for cell in plan.cells}
        self._beside = {
            key: work.prompts
            for work in schedule(plan, prompts)
            if work.cell.is_baseline and work.cell.concurrency > 1
            for key in work.keys
        }
        """Prompts that the baseline decodes together with the one of a key."""
        self._margins: dict[tuple[Key, int], MarginPass | str] = {}
        self._waiting: dict[Key, list[Key]] = {}
        """Keys of rows without a verdict, by the key of the baseline's row."""
        for row in store.rows():
            self.watch(row)
        for base in list(self._waiting):
            self.settle(base)

    def of(self, row: Row) -> dict[str, Any]:
        """The verdict columns of a row that is about to be stored, as far as they can be told."""
        if row.get("error") is not None or row["temperature"] > 0:
            return {}
        base = self._base(row)
        if base == key_of(row):
            return _columns(Equivalence(IDENTICAL))
        stored = self._store.row(base) if base else None
        if stored is None or stored["error"] is not None:
            return {}
        return _columns(judge(stored["token_ids"], row["token_ids"], row["dtype"]))

    def watch(self, row: Row) -> None:
        """Remember a stored row that has no verdict yet."""
        if row["error"] is None and row["temperature"] == 0 and row["equivalence"] == UNCHECKED:
            if base := self._base(row):
                self._waiting.setdefault(base, []).append(key_of(row))

    def settle(self, base: Key) -> None:
        """Tell the verdicts that waited for the baseline's row ``base``, as far as no margin is needed."""
        stored = self._store.row(base)
        if stored is None or stored["error"] is not None or base not in self._waiting:
            return
        changes = {}
        for key in self._waiting[base]:
            row = self._store.row(key)
            found = judge(stored["token_ids"], row["token_ids"], row["dtype"])
            if (found.verdict, found.first_divergence) != (row["equivalence"], row["first_divergence"]):
                changes[key] = _columns(found)
        self._store.amend(changes)
        self._waiting[base] = [
            key for key in self._waiting[base] if self._store.row(key)["equivalence"] == UNCHECKED
        ]

    def settle_divergent(self) -> None:
        """Decode prompts whose outputs differ once more by the baseline, untimed, for its margins."""
        for base, waiting in self._waiting.items():
            stored = self._store.row(base)
            if not waiting or stored is None or stored["error"] is not None:
                continue
            self._progress.phase(f"margins · {stored['dataset']} {base.prompt_id}")
            self._store.amend({key: _columns(self._judge_divergent(base, stored, key)) for key in waiting})
        self._waiting = {}
        self._margins = {}

    def _judge_divergent(self, base: Key, stored: Row, key: Key) -> Equivalence:
        """The verdict by the first margin pass that has a margin at the difference; a mismatch if none has."""
        row = self._store.row(key)
        for margins in self._margin_passes(base):
            if isinstance(margins, MarginPass):
                found = judge(stored["token_ids"], row["token_ids"], row["dtype"], margins)
            else:
                # Not proven to be a near tie, so it isn't taken for one.
                found = Equivalence(MISMATCH, row["first_divergence"], None, f"no margin: {margins}")
            if found.divergence_margin is not None:
                break
        return found

    def measure_noise(self) -> dict[str, str]:
        """Decode some prompts by the baseline again, untimed, in batches of other sizes.

        Returns:
            What was done, in words, by data set (and requests at once, where there are several such numbers).
        """
        said = {}
        several = len({cell.concurrency for cell in self._plan.cells}) > 1
        for cell in self._plan.cells:
            if not cell.is_baseline or cell.temperature > 0:
                continue
            place = f"{cell.dataset}, {cell.concurrency} at once" if several else cell.dataset
            most = cell.engine.max_num_seqs
            batches = [batch for batch in NOISE_BATCHES if batch != cell.concurrency and batch <= most]
            if not batches and most > 1:
                batches = [most]
            if not batches:
                said[place] = "not measured: engine.max_num_seqs=1 leaves no other batch size"
                continue
            batches = batches[:NOISE_PASSES]
            chosen = self._prompts[cell.dataset][:NOISE_PROMPTS]
            for batch in batches:
                self._noise_of(cell, chosen, batch)
            said[place] = (
                f"first turns of {plural(len(chosen), 'prompt')}, plain decoding: tokens with "
                f"{' and '.join(map(str, batches))} at once against tokens with {cell.concurrency} at once"
            )
        return said

    def _noise_of(self, cell: Cell, chosen: Sequence[Prompt], batch: int) -> None:
        missing = []
        for prompt in chosen:
            row = self._asking.baseline_row(cell, prompt.prompt_id, 0)
            if row is not None and str(batch) not in _other_batches(row):
                missing.append((prompt, row))
        if missing:
            self._progress.phase(f"noise floor · {cell.dataset}")
        for start in range(0, len(missing), batch):
            own = missing[start : start + batch]
            # A batch that isn't full is filled up with other prompts, or with the same ones again.
            filling = [chosen[(start + extra) % len(chosen)] for extra in range(len(own), batch)]
            requests = [self._asking.request(cell, prompt, 0, 0) for prompt, _ in own] + [
                replace(self._asking.request(cell, prompt, 0, 0), request_id=f"filling/{number}")
                for number, prompt in enumerate(filling)
            ]
            try:
                answers = self._generate(cell, requests, batch)
            except EngineError as failure:
                self._progress.note(f"noise floor of {cell.dataset}: {failure}")
                return
            changes = {}
            for (_, row), answer in zip(own, answers):
                if answer.error is None:
                    passes = {**_other_batches(row), str(batch): first_divergence(row["token_ids"], answer.token_ids)}
                    changes[key_of(row)] = {
                        "other_batches": json.dumps(passes),
                        "identical_other_batch": all(at is None for at in passes.values()),
                    }
            self._store.amend(changes)

    def _margin_passes(self, base: Key) -> Iterator[MarginPass | str]:
        """The baseline's margins on a prompt, or why they can't be had.

        First with the same requests at once as when it was timed, since plain decoding in another
        batch may take another way before the difference; then, should it do so all the same, alone.
        """
        cell = self._cells[base.cell_id]
        alone = tuple(prompt for prompt in self._prompts[cell.dataset] if prompt.prompt_id == base.prompt_id)
        for together in {len(prompts): prompts for prompts in (self._beside.get(base, alone), alone)}.values():
            if (base, len(together)) not in self._margins:
                self._run_margin_pass(cell, base, together)
            yield self._margins[base, len(together)]

    def _run_margin_pass(self, cell: Cell, base: Key, together: Sequence[Prompt]) -> None:
        """Fill in the margins of all prompts that are decoded ``together`` with that of ``base``."""
        requests, failures = {}, {}
        for prompt in together:
            key = base._replace(prompt_id=prompt.prompt_id)
            try:
                requests[key] = self._asking.request(cell, prompt, base.turn, 0, margins=True)
            except InputError as failure:
                failures[key] = str(failure)
        found: dict[Key, MarginPass | str]
        try:
            answers = self._generate(cell, list(requests.values()), cell.concurrency)
            found = {
                key: answer.error or MarginPass(answer.token_ids, answer.gaps or ())
                for key, answer in zip(requests, answers)
            }
        except EngineError as failure:
            found = dict.fromkeys(requests, str(failure))
        self._margins |= {(key, len(together)): margins for key, margins in (found | failures).items()}

    def _base(self, row: Row) -> Key | None:
        return self._asking.baseline_key(self._cells[row["cell_id"]], row["prompt_id"], row["turn"])


def _other_batches(row: Row) -> dict[str, int | None]:
    """Where plain decoding in other batches first differs from its row, None for nowhere; by batch size."""
    return json.loads(row["other_batches"]) if row["other_batches"] else {}


def _columns(found: Equivalence) -> dict[str, Any]:
    return {
        "equivalence": found.verdict,
        "first_divergence": found.first_divergence,
        "divergence_margin": found.divergence_margin,
        "equivalence_note": found.note or None,
    }
