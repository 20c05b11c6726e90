"""What changed from one stored run to another; pure functions of the two.

Tokens, steps, acceptance and verdicts are the same at every repetition, so any change for the worse
is a regression. Times are not: a speed-up has become slower or faster only if the interval of its
change says so. Absolute times are never compared: speed-ups are ratios within a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lookahead_bench.errors import InputError
from lookahead_bench.provenance import machine_of
from lookahead_bench.report.words import SEVERITY, cell_labels, plural
from lookahead_bench.stats import CONTROL, NO_CONTROL, SETTINGS, change_interval, clusters, verdict
from lookahead_bench.store import Results

SAME_CELL = (
    "dataset", "model", "strategy", "parameters", "executor", "dtype", "concurrency", "temperature", "max_new_tokens",
)  # fmt: skip
"""What two cells of different runs have in common if they are the same work, whatever the versions."""
_UNIT = ["prompt_id", "turn", "repeat"]
_RESULT_VERSIONS = ("vllm", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell in both runs.

    Attributes:
        dataset, label: of the cell.
        outputs: rows that are compared: in both runs, without an error, on prompts that plain
            decoding continues alike in both.
        step_compression, speedup: before and after.
        change, change_low, change_high: factor by which the speed-up changed, with its interval.
        speed: ``faster``, ``slower`` or ``can't tell``; "" for plain decoding, which is the measure.
        worse: what is exact and has become worse, in words.
        better: what is exact and has become better.
    """

    dataset: str
    label: str
    outputs: int
    step_compression: tuple[float, float]
    speedup: tuple[float, float]
    change: float
    change_low: float
    change_high: float
    speed: str
    worse: tuple[str, ...]
    better: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, cell by cell.

    Attributes:
        cells: those in both runs.
        missing: names of cells that only the run before has.
        new: names of cells that only the run after has.
        same_machine: whether both runs were made on machines of one kind.
        same_versions: whether both ran with the same vLLM, torch and transformers.
        notes: what a reader must know, in words.
    """

    cells: tuple[CellChange, ...]
    missing: tuple[str, ...]
    new: tuple[str, ...]
    same_machine: bool
    same_versions: bool
    notes: tuple[str, ...]

    @property
    def worse(self) -> list[str]:
        """Everything exact that has become worse."""
        found = [f"{name}: measured before, but not now" for name in self.missing]
        return found + [f"{cell.dataset}, {cell.label}: {line}" for cell in self.cells for line in cell.worse]

    @property
    def slower(self) -> list[CellChange]:
        """Cells whose speed-up has become slower."""
        return [cell for cell in self.cells if cell.speed == "slower"]


def compare(before: Results, after: Results, seed: int = 0) -> Comparison:
    """Compare two runs.

    Args:
        before, after: as they were stored.
        seed: of the bootstrap.

    Raises:
        InputError: they have no cell in common.
    """
    old, new = _cells(before), _cells(after)
    common = [key for key in old if key in new]
    if not common:
        raise InputError(f"{after.folder}: must have a cell in common with {before.folder} (none has the same settings)")
    same_machine = machine_of(before.provenance) == machine_of(after.provenance)
    same_versions = _versions(before) == _versions(after)
    judge = _Judge(old, new, same_machine and same_versions, seed)
    cells = tuple(judge.change(key) for key in common)
    return Comparison(
        cells=cells,
        missing=tuple(old[key].name for key in old if key not in new),
        new=tuple(new[key].name for key in new if key not in old),
        same_machine=same_machine,
        same_versions=same_versions,
        notes=tuple(_notes(before, after, same_machine, judge)),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of one run.

    Attributes:
        place: what it has in common with the baseline that it is compared with, by SETTINGS.
        setting: that in words, as far as it differs within the run: "humaneval, 4 at once".
    """

    dataset: str
    label: str
    strategy: str
    place: tuple[object, ...]
    setting: str
    rows: pd.DataFrame
    line: pd.Series

    @property
    def name(self) -> str:
        return f"{self.dataset}, {self.label}"

    @property
    def is_baseline(self) -> bool:
        return bool(self.line["is_baseline"])


def _cells(results: Results) -> dict[tuple[object, ...], _Cell]:
    rows = {cell_id: rows for cell_id, rows in results.rows.groupby("cell_id", sort=False)}
    several = {name for name in SETTINGS if results.rows[name].nunique() > 1}
    cells = {}
    for label, (_, line) in zip(cell_labels(results.summary), results.summary.iterrows(), strict=True):
        own = rows[line["cell_id"]]
        first = own.iloc[0]
        key = tuple(first[name] for name in SAME_CELL)
        place = tuple(first[name] for name in SETTINGS)
        words = {"dtype": first["dtype"], "concurrency": f"{first['concurrency']} at once"}
        setting = ", ".join([line["dataset"], *(words[name] for name in words if name in several)])
        cells[key] = _Cell(line["dataset"], label, line["strategy"], place, setting, own, line)
    return cells


class _Judge:
    """Compares the cells of two runs that are the same work."""

    def __init__(self, old: dict, new: dict, same_setup: bool, seed: int) -> None:
        self._old, self._new, self._same_setup, self._seed = old, new, same_setup, seed
        self.moved: dict[str, int] = {}
        self._baselines = {cell.place: (cell, new[key]) for key, cell in old.items() if key in new and cell.is_baseline}
        self._alike = {place: self._alike_prompts(*pair) for place, pair in self._baselines.items()}
        self._reach = {
            cell.place: self._change_of(key)[1:3] for key, cell in old.items() if key in new and cell.strategy == CONTROL
        }

    def _alike_prompts(self, old: _Cell, new: _Cell) -> pd.DataFrame:
        """Turns of prompts that plain decoding continues alike in both runs; counts the others."""
        pairs = _good(old.rows).merge(_good(new.rows), on=_UNIT, suffixes=("", "_after"))
        same = [list(a) == list(b) for a, b in zip(pairs["token_ids"], pairs["token_ids_after"])]
        self.moved[old.setting] = len(same) - sum(same)
        return pairs.loc[same, ["prompt_id", "turn"]].drop_duplicates()

    def change(self, key: tuple[object, ...]) -> CellChange:
        old, new = self._old[key], self._new[key]
        pairs = _good(old.rows).merge(_good(new.rows), on=_UNIT, suffixes=("", "_after"))
        alike = self._alike.get(old.place)
        if alike is not None and not old.is_baseline:
            pairs = pairs.merge(alike, on=["prompt_id", "turn"])
        worse, better = self._exact(old, new, pairs)
        ratio, low, high, prompts = self._change_of(key)
        speed = "" if old.is_baseline else verdict(low, high, prompts, self._reach.get(old.place, NO_CONTROL))
        return CellChange(
            dataset=old.dataset,
            label=old.label,
            outputs=len(pairs),
            step_compression=(_compression(pairs, ""), _compression(pairs, "_after")),
            speedup=(float(old.line["speedup"]), float(new.line["speedup"])),
            change=ratio,
            change_low=low,
            change_high=high,
            speed=speed,
            worse=tuple(worse),
            better=tuple(better),
        )

    def _exact(self, old: _Cell, new: _Cell, pairs: pd.DataFrame) -> tuple[list[str], list[str]]:
        worse, better = [], []
        failed = int(new.rows["error"].notna().sum()) - int(old.rows["error"].notna().sum())
        if failed > 0:
            worse.append(f"{plural(failed, 'more request')} failed")
        lost = len(_good(old.rows).merge(_keys(new.rows), on=_UNIT, how="left", indicator=True).query("_merge == 'left_only'"))
        if lost:
            worse.append(f"{plural(lost, 'output')} measured before and not now")
        if pairs.empty:
            return worse, better
        same = np.array([list(a) == list(b) for a, b in zip(pairs["token_ids"], pairs["token_ids_after"])])
        other = len(same) - int(same.sum())
        # In half precision another kernel may decide a near tie otherwise.
        if other and (self._same_setup or pairs["dtype"].iloc[0] == "float32") and self._counts(old):
            worse.append(f"{plural(other, 'output')} of {len(pairs)} with other tokens")
        ranks = {name: rank for rank, name in enumerate(SEVERITY)}
        verdicts = [pairs[column].map(ranks).fillna(ranks["unchecked"]) for column in ("equivalence", "equivalence_after")]
        less_equal = int((verdicts[1] > verdicts[0]).sum())
        if less_equal:
            worse.append(f"{plural(less_equal, 'output')} further from plain decoding's (near tie or mismatch)")
        for said, is_worse in _work_changes(pairs[same]):
            (worse if is_worse else better).append(said)
        return worse, better

    def _counts(self, cell: _Cell) -> bool:
        """Whether other tokens are a fault: not where plain decoding moved because the setting did."""
        return self._same_setup or not cell.is_baseline

    def _change_of(self, key: tuple[object, ...]) -> tuple[float, float, float, int]:
        """Factor of the speed-up's change, its interval, and the prompts behind it."""
        old, new = self._old[key], self._new[key]
        if old.place not in self._baselines:
            return np.nan, np.nan, np.nan, 0
        base_old, base_new = self._baselines[old.place]
        sums = [clusters(old.rows, base_old.rows), clusters(new.rows, base_new.rows)]
        prompts = sums[0].index.intersection(sums[1].index)
        if prompts.empty:
            return np.nan, np.nan, np.nan, 0
        columns = [[table.loc[prompts, name].to_numpy() for name in table] for table in sums]
        return *change_interval(*columns, self._seed), len(prompts)


def _work_changes(pairs: pd.DataFrame) -> list[tuple[str, bool]]:
    """What it now takes to produce the same tokens, where that is not what it took; and whether it is worse.

    Rows are compared one by one: what one prompt gains does not hide what another loses.
    """
    changes = []
    for moved, is_worse in ((pairs["decode_steps_after"] > pairs["decode_steps"], True), (pairs["decode_steps_after"] < pairs["decode_steps"], False)):
        if moved.any():
            rows = pairs[moved]
            s = [_compression(rows, suffix) for suffix in ("", "_after")]
            steps = [int(rows[column].sum()) for column in ("decode_steps", "decode_steps_after")]
            outputs = f"on {plural(len(rows), 'output')} of {len(pairs)}"
            changes.append((f"S {s[0]:.4g} → {s[1]:.4g} {outputs} ({steps[0]} → {steps[1]} steps for the same tokens)", is_worse))
    # With other steps other drafts are no surprise; with the same, more of them are cost without gain.
    steady = pairs[pairs["decode_steps_after"] == pairs["decode_steps"]]
    drafted = [int(steady[column].sum()) for column in ("drafted_tokens", "drafted_tokens_after")]
    if drafted[1] != drafted[0]:
        changes.append((f"{drafted[0]} → {drafted[1]} drafted tokens for the same steps", drafted[1] > drafted[0]))
    return changes


def _good(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["error"].isna()]


def _keys(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[_UNIT]


def _compression(pairs: pd.DataFrame, suffix: str) -> float:
    """Tokens per step over the compared rows; NaN if no step was taken."""
    steps = float(pairs[f"decode_steps{suffix}"].sum())
    return float((pairs[f"new_tokens{suffix}"] - 1).sum()) / steps if steps else np.nan


def _versions(results: Results) -> tuple[object, ...]:
    versions = results.provenance.get("versions") or {}
    return tuple(versions.get(name) for name in _RESULT_VERSIONS)


def _notes(before: Results, after: Results, same_machine: bool, judge: _Judge) -> list[str]:
    notes = []
    if not same_machine:
        old, new = (str(machine_of(run.provenance)[0]) for run in (before, after))
        notes.append(
            f"The baseline is from another machine ({old}; now {new}): only ratios within a run are compared, "
            "and step costs may differ for that reason alone."
        )
    for name, old, new in zip(_RESULT_VERSIONS, _versions(before), _versions(after)):
        if old != new:
            notes.append(f"{name} {old} → {new}.")
    for setting, count in judge.moved.items():
        if count:
            notes.append(f"{setting}: plain decoding itself gives other tokens on {plural(count, 'output')}; they are left out.")
    return notes
