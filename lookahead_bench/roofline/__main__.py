"""``python -m lookahead_bench.roofline``: the least time of a step here, beside what was measured."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from lookahead_bench.errors import InputError
from lookahead_bench.report.runs import find_runs
from lookahead_bench.report.words import labels
from lookahead_bench.roofline.limits import Limit, Machine, Work, limit

DTYPES = ("float32", "bfloat16", "float16")
SIZES = (1, 2, 4, 8, 16, 32, 64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the limit of a step by tokens in flight, and stored steps beside it; 0, or 2 on bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m lookahead_bench.roofline",
        description="The least time that a decoding step can take on this machine: every weight read once at the measured "
        "bandwidth, every product at the measured rate. With RESULTS, how far the stored steps of a run are from it.",
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULTS", help="a run's folder, or one that holds runs: the newest")
    parser.add_argument("--model", default="smollm2-135m", help="a name of conf/model, a local folder, or a hub id")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and KV cache")
    parser.add_argument("--context", type=int, default=256, metavar="TOKENS", help="tokens before the step")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        if given.context < 0:
            raise InputError(f"--context={given.context}: must be 0 or more")
        runs = [find_runs(path)[-1] for path in given.results]
        work = _work(given.model)
        machine = _machine(given.dtype)
        element_bytes = 4 if given.dtype == "float32" else 2
        limits = [limit(work, machine, element_bytes, given.context, size) for size in SIZES]
        _print_machine(console, machine, given.dtype, work, element_bytes)
        _print_limits(console, limits)
        for run in runs:
            _print_steps(console, run, given.dtype, work, machine, element_bytes)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _work(model: str) -> Work:
    from lookahead_bench.engine.checks import model_config
    from lookahead_bench.models import model_named, resolve_model

    return Work.of(model_config(resolve_model(model_named(model)).path))


def _machine(dtype: str) -> Machine:
    import torch

    from lookahead_bench.engine.settings import usable_cores
    from lookahead_bench.roofline.machine import measure

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or usable_cores()))
    return measure(getattr(torch, dtype))


def _print_machine(console: Console, machine: Machine, dtype: str, work: Work, element_bytes: int) -> None:
    console.print(
        f"{dtype}: {machine.bytes_per_second / 1e9:.1f} GB/s of weights read, "
        f"{machine.operations_per_second / 1e9:.0f} Gop/s in matrix products; "
        f"a step reads {work.weights * element_bytes / 1e6:.0f} MB of weights",
        highlight=False,
        soft_wrap=True,
    )


def _print_limits(console: Console, limits: Sequence[Limit]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("T", "memory ms", "compute ms", "limit ms", "c at the limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in limits:
        values = (1e3 * one.memory_seconds, 1e3 * one.compute_seconds, 1e3 * one.seconds, one.seconds / limits[0].seconds)
        table.add_row(str(one.in_flight), *(f"{value:.2f}" for value in values))
    console.print(table)


def _print_steps(console: Console, run: Path, dtype: str, work: Work, machine: Machine, element_bytes: int) -> None:
    from lookahead_bench.store import load_results

    results = load_results(run)
    found = set(results.rows["dtype"])
    if found != {dtype}:
        raise InputError(f"--dtype={dtype}: must be {', '.join(sorted(found))}, as in {run}")
    name = labels(results)
    table = Table(box=None, pad_edge=False, title=str(run), title_justify="left")
    for heading in ("cell", "context", "T", "step ms", "limit ms", "step / limit"):
        table.add_column(heading, justify="left" if heading == "cell" else "right", no_wrap=True)
    contexts = _contexts(results.rows)
    for cell_id, steps in results.steps.groupby("cell_id", sort=False):
        context, in_flight = round(contexts[cell_id]), round(steps["in_flight"].mean())
        least = limit(work, machine, element_bytes, context, in_flight).seconds
        seconds = float(steps["seconds"].median())
        cell = f"{steps['dataset'].iloc[0]}, {name[cell_id]}"
        table.add_row(cell, str(context), str(in_flight), f"{1e3 * seconds:.2f}", f"{1e3 * least:.2f}", f"{seconds / least:.2f}")
    console.print(table)


def _contexts(rows: pd.DataFrame) -> pd.Series:
    """Mean context of a step, by cell: the prompt and half of the output."""
    good = rows[rows["error"].isna()]
    return (good["prompt_tokens"] + good["new_tokens"] / 2).groupby(good["cell_id"]).mean()


if __name__ == "__main__":
    sys.exit(main())
