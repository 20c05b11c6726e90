"""What several requests in flight get, and what the machine yields: latency and throughput, apart.

Throughput is taken from the loaded phase of each group of prompts that were handed over together: from
its first request to the instant at which fewer requests are in flight than there should be, because
nothing waits any more. Tokens count when they are emitted, first ones too: the prompts of others are a part of the load.
Latency is a request's own: TTFT from its being handed in to its first token, TPOT its decode seconds per
token, and ITL the time between two emissions (chunks). A plain step emits one token, so there ITL and TPOT
are about the same; a step that emits three tokens is one ITL, and a third of it goes into the TPOT.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lookahead_bench.stats import CONTROL, NO_CONTROL, SETTINGS, speedup_interval, verdict

PERCENTILES = (50, 90, 99)
LATENCIES = ("ttft", "tpot", "itl")
"""Time to first token, time per output token, inter-token latency."""
PHASE = ("repeat", "turn", "load_group")
"""What names a group of prompts in every cell of its data set and concurrency."""
_ROW = ["prompt_id", "turn", "repeat"]
_ROUNDING = 1e-7  # what ended in the same step of the engine ended at the same time
_PHASE_COLUMNS = (*PHASE, "tokens", "seconds", "busy_seconds")


def load_columns(rows: pd.DataFrame, steps: pd.DataFrame, seed: int) -> dict[str, dict[str, object]]:
    """What each cell of a run gets and yields, by cell id.

    Columns:
        throughput: output tokens/s of all requests together, over all loaded phases.
        requests_in_flight: how many there were in those, on the average over time.
        throughput_ratio: throughput over that of plain decoding with as many requests, over the groups that both
            have; ``throughput_low``, ``throughput_high``: its 95 % interval, bootstrapped over groups (one request at
            once: over prompts). Groups of several repeats have their prompts in common.
        throughput_groups: what that interval rests on; with fewer than MIN_PROMPTS nothing can be told.
        throughput_verdict: as the verdict on the speed-up, by that interval.
        ttft, tpot and itl with ``_p50_seconds``, ``_p90_seconds`` and ``_p99_seconds``: see `latencies`.

    Args:
        rows, steps: of any number of cells.
        seed: of the bootstrap.
    """
    own_steps = dict(iter(steps.groupby("cell_id"))) if len(steps) else {}
    cells = {str(cell_id): cell for cell_id, cell in rows.groupby("cell_id", sort=False)}
    phases = {
        cell_id: loaded_phases(cell, own_steps.get(cell_id, steps.iloc[:0])) for cell_id, cell in cells.items()
    }
    place = {cell_id: tuple(cell.iloc[0][name] for name in SETTINGS) for cell_id, cell in cells.items()}
    plain = {place[cell_id]: cell_id for cell_id, cell in cells.items() if cell["is_baseline"].iloc[0]}
    ratios = {
        cell_id: _ratio(cell, phases[cell_id], phases.get(plain.get(place[cell_id], "")), seed)
        for cell_id, cell in cells.items()
    }
    reach = {
        place[cell_id]: ratios[cell_id][1:3] for cell_id, cell in cells.items() if cell["strategy"].iloc[0] == CONTROL
    }
    found: dict[str, dict[str, object]] = {}
    for cell_id, cell in cells.items():
        own, (ratio, low, high, count) = phases[cell_id], ratios[cell_id]
        seconds = own["seconds"].sum()
        judged = verdict(low, high, count, reach.get(place[cell_id], NO_CONTROL))
        found[cell_id] = {
            "throughput": own["tokens"].sum() / seconds if seconds else np.nan,
            "requests_in_flight": own["busy_seconds"].sum() / seconds if seconds else np.nan,
            "throughput_ratio": ratio,
            "throughput_low": low,
            "throughput_high": high,
            "throughput_groups": count,
            "throughput_verdict": "" if cell["is_baseline"].iloc[0] else judged,
            **latencies(cell, own_steps.get(cell_id, steps.iloc[:0])),
        }
    return found


def _ratio(
    cell: pd.DataFrame, own: pd.DataFrame, plain: pd.DataFrame | None, seed: int
) -> tuple[float, float, float, int]:
    """Ratio of throughputs, its interval, and how many independent parts it rests on."""
    pairs = own.merge(plain, on=list(PHASE), suffixes=("", "_base")) if plain is not None else own.iloc[:0]
    if pairs.empty:
        return np.nan, np.nan, np.nan, 0
    if int(cell["concurrency"].iloc[0]) == 1:
        # A group is a prompt then, whatever its number in a repeat.
        prompts = cell.drop_duplicates(list(PHASE))[[*PHASE, "prompt_id"]]
        clusters = pairs.merge(prompts, on=list(PHASE)).groupby("prompt_id")
    else:
        clusters = pairs.groupby(["repeat", "load_group"])
    sums = clusters[["tokens", "seconds", "tokens_base", "seconds_base"]].sum()
    return *speedup_interval(*(sums[name].to_numpy() for name in sums), seed), len(sums)


def latencies(rows: pd.DataFrame, steps: pd.DataFrame) -> dict[str, float]:
    """Percentiles of one cell's latencies, in seconds; NaN where nothing has that latency.

    Args:
        rows: of one cell; failed ones are left out.
        steps: of the same cell.
    """
    good = rows[rows["error"].isna()]
    tokens = good["new_tokens"].astype("Float64").to_numpy(float, na_value=np.nan) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = good["decode_seconds"].to_numpy(float) / tokens
    values = {
        "ttft": good["prefill_seconds"].to_numpy(float),
        "tpot": per_token[tokens > 0],
        "itl": inter_token(steps),
    }
    return {
        f"{name}_p{percent}_seconds": float(np.percentile(values[name], percent)) if len(values[name]) else np.nan
        for name in LATENCIES
        for percent in PERCENTILES
    }


def inter_token(steps: pd.DataFrame) -> np.ndarray:
    """Seconds between two emissions of a request, float [steps]; empty if the steps have no such time."""
    if steps.empty or "emitted_at_seconds" not in steps or not (steps["emitted_at_seconds"].fillna(0) > 0).any():
        return np.empty(0)
    ordered = steps.sort_values([*_ROW, "step"])
    at = ordered["emitted_at_seconds"].to_numpy(float)
    # The emission before a request's first step is its first token, at 0.
    before = ordered.groupby(_ROW)["emitted_at_seconds"].shift(1, fill_value=0.0).to_numpy(float)
    return at - before


def loaded_phases(rows: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The loaded phase of each group of one cell.

    Of a group whose rows come from more than one attempt, the attempt with the most rows counts: the
    company of a row that was done again is not stored.

    Returns:
        Columns of PHASE; ``tokens``: emitted in the phase; ``seconds``: its length; ``busy_seconds``: of all
        its requests together, so busy_seconds / seconds is how many were in flight.
    """
    known = rows[rows["error"].isna()]
    if "load_group" not in rows or "queued_seconds" not in rows or known["queued_seconds"].isna().all():
        return pd.DataFrame(columns=_PHASE_COLUMNS, dtype=float)
    known = known[known["queued_seconds"].notna()]
    emissions = dict(iter(steps.groupby(_ROW))) if len(steps) else {}
    found = [
        (*place, *_phase(attempt, emissions)) for place, group in known.groupby(list(PHASE)) for attempt in _attempt(group)
    ]
    return pd.DataFrame(found, columns=_PHASE_COLUMNS).astype(float)


def _attempt(group: pd.DataFrame) -> Iterator[pd.DataFrame]:
    counts = group["started_at"].value_counts()
    if len(counts):
        yield group[group["started_at"] == counts.index[0]]


def _phase(group: pd.DataFrame, emissions: dict) -> tuple[float, float, float]:
    began = group["queued_seconds"].to_numpy(float)
    first = began + group["prefill_seconds"].to_numpy(float)
    ended = first + group["decode_seconds"].to_numpy(float)
    # Nothing waits from the last admission on; the phase is over with the next request that ends.
    until = ended[ended > began.max()].min()
    tokens = float((first <= until + _ROUNDING).sum())
    for key, start in zip(group[_ROW].itertuples(index=False, name=None), first, strict=True):
        own = emissions.get(key)
        if own is not None:
            tokens += own.loc[start + own["emitted_at_seconds"].to_numpy(float) <= until + _ROUNDING, "accepted"].sum()
    busy = np.clip(np.minimum(ended, until) - began, 0, None).sum()
    return tokens, float(until - began.min()), float(busy)
