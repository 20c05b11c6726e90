"""What a plan would do and about how long it would take, without doing it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from lookahead_bench.plan import Plan
from lookahead_bench.provenance import cpu, gpus, machine_of
from lookahead_bench.records import Cell, Prompt

if TYPE_CHECKING:
    from lookahead_bench.models import ModelSource

ASSUMED_TOKENS_PER_SECOND = 40.0
"""A model of 135M parameters on two CPU cores; used where nothing was measured yet."""
_DESCRIBING = ("strategy", "model", "dtype", "error")
_SUMMED = ("new_tokens", "prefill_seconds", "decode_seconds")
ASSUMED_START_SECONDS = {True: 15.0, False: 100.0}
"""Start of one engine without compilation (``enforce_eager``) and with it, the first time."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """About how long a plan takes.

    Attributes:
        start_seconds: starting the engines.
        decode_seconds: prompts and outputs, at full length each.
        source: where the numbers come from, in words.
    """

    start_seconds: float
    decode_seconds: float
    source: str


def estimate(
    plan: Plan, prompts: Mapping[str, Sequence[Prompt]], model: ModelSource, results_dir: Path
) -> Estimate:
    """Estimate from earlier rows of the same machine, model and dtype, else from an assumed speed."""
    seconds = _seconds_per_token(results_dir, model.name, plan.cells[0].engine.dtype)
    if seconds.empty:
        source = f"assumed: {ASSUMED_TOKENS_PER_SECOND:g} tokens/s for every method; nothing was measured here yet"
        mean = 1 / ASSUMED_TOKENS_PER_SECOND
    else:
        source = "from earlier runs of this model and dtype on this machine"
        mean = float(seconds.mean())
    decode = sum(
        generations(cell, plan, prompts) * cell.max_new_tokens * seconds.get(cell.strategy.name, mean)
        for cell in plan.cells
    )
    start = sum(ASSUMED_START_SECONDS[engine.enforce_eager] for engine in plan.engines)
    return Estimate(start, decode, source)


def generations(cell: Cell, plan: Plan, prompts: Mapping[str, Sequence[Prompt]]) -> int:
    """How many outputs a cell makes: prompts, times their turns, times repeats."""
    return plan.repeats * sum(prompt.num_turns for prompt in prompts[cell.dataset])


def print_plan(
    plan: Plan, prompts: Mapping[str, Sequence[Prompt]], expected: Estimate, console: Console
) -> None:
    """Print the cells as a table, and the estimate."""
    table = Table(box=None, pad_edge=False)
    several = len({cell.concurrency for cell in plan.cells}) > 1
    for heading in ("data set", "method", "executor", *["at once"] * several, "prompts", "outputs", "cell"):
        counts = heading in ("at once", "prompts", "outputs")
        table.add_column(heading, no_wrap=True, justify="right" if counts else "left")
    for cell in plan.cells:
        label = f"{cell.label} (baseline)" if cell.is_baseline else cell.label
        counts = *[cell.concurrency] * several, len(prompts[cell.dataset]), generations(cell, plan, prompts)
        table.add_row(cell.dataset, label, cell.engine.executor, *map(str, counts), cell.cell_id)
    console.print(table)
    total = sum(generations(cell, plan, prompts) for cell in plan.cells)
    lines = (
        f"sweep {plan.sweep}: {len(plan.cells)} cells in {plan.cells[0].engine.dtype}, {total} outputs, "
        f"{len(plan.engines)} engines taking turns",
        f"about {duration(expected.start_seconds + expected.decode_seconds)}: "
        f"{duration(expected.decode_seconds)} of decoding if every output has its full length, "
        f"{duration(expected.start_seconds)} of starting engines",
        expected.source,
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _seconds_per_token(results_dir: Path, model: str, dtype: str) -> pd.Series:
    """Mean prefill plus decode seconds per output token, by strategy; empty if nothing was measured here."""
    here = machine_of({"cpu": cpu(), "gpus": gpus()})
    found = []
    for path in sorted(results_dir.glob("*/*/rows.parquet")):
        provenance = path.with_name("provenance.json")
        if provenance.is_file() and machine_of(json.loads(provenance.read_text())) == here:
            try:
                rows = pd.read_parquet(path, columns=[*_DESCRIBING, *_SUMMED])
            except (ValueError, OSError):  # damaged: it tells nothing, and an estimate does without it
                continue
            same = (rows["model"] == model) & (rows["dtype"] == dtype) & rows["error"].isna()
            found.append(rows[same])
    if not found:
        return pd.Series(dtype=float)
    sums = pd.concat(found).groupby("strategy")[list(_SUMMED)].sum().astype(float)
    sums = sums[sums["new_tokens"] > 0]
    return (sums["prefill_seconds"] + sums["decode_seconds"]) / sums["new_tokens"]
