"""From the stored steps of a cost sweep to c(T): medians, ratios and their intervals.

Every size stands beside a plain step (T = 1) of the same request and round, so ratios are paired: the
interval resamples rounds, and with a round all its sizes. scipy.stats.bootstrap, percentile method.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from lookahead_bench.cost.filler import size_of_step

INSTRUMENT = "filler"
COLUMNS = (
    "executor", "dtype", "context", "shape", "top_k", "in_flight", "seconds", "ratio", "ratio_low", "ratio_high",
    "stock_ratio", "steps",
)  # fmt: skip
"""What ``cost.csv`` has: one line per executor, dtype, context, shape, top_k and size.

``seconds``: median of a step. ``ratio``: to the plain steps (T = 1) of the same engine and context, with
its 95 % interval. ``stock_ratio``: to plain stock decoding of the same context, NaN where there is none.
"""
_GROUP = list(COLUMNS[:5])
_ROUND = ["cell_id", "prompt_id", "repeat", "round"]
_RESAMPLES = 2000


def cost_table(rows: pd.DataFrame, steps: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Cost by size, columns COLUMNS; empty if the run has no steps of the instrument.

    Args:
        rows, steps: as stored.
        seed: of the resampling.
    """
    fillers = rows[(rows["strategy"] == INSTRUMENT) & rows["error"].isna()]
    measured = pd.concat([_sized(steps, row) for row in fillers.to_dict("records")] or [pd.DataFrame(columns=[*_GROUP, *_ROUND])])
    stock = _stock_seconds(rows, steps)
    lines = []
    for group, of_group in measured.groupby(_GROUP, sort=True):
        by_round = of_group.pivot_table(index=_ROUND, columns="in_flight", values="seconds")
        if 1 not in by_round:
            continue
        for size in by_round:
            seconds, plain = by_round[[size, 1]].dropna().to_numpy().T[[0, -1]]
            lines.append(
                {
                    **dict(zip(_GROUP, group)),
                    "in_flight": int(size),
                    "seconds": float(np.median(seconds)),
                    **_ratio(seconds, plain, seed),
                    "stock_ratio": float(np.median(seconds)) / stock.get(group[1:3], np.nan),
                    "steps": len(seconds),
                }
            )
    return pd.DataFrame(lines, columns=list(COLUMNS))


def points(lines: pd.DataFrame) -> list[list[float]]:
    """The curve of one executor, dtype, context, shape and top_k as pairs of size and cost.

    A larger draft never costs less; where a median says so, by chance, the higher one before it stands.
    """
    ordered = lines.sort_values("in_flight")
    costs = np.maximum.accumulate(ordered["ratio"].to_numpy(float))
    return [[int(size), round(float(cost), 4)] for size, cost in zip(ordered["in_flight"], costs)]


def _sized(steps: pd.DataFrame, row: dict[str, object]) -> pd.DataFrame:
    """A request's steps with their sizes; a draft that the scheduler cut is left out."""
    own = steps[
        (steps["cell_id"] == row["cell_id"]) & (steps["prompt_id"] == row["prompt_id"]) & (steps["repeat"] == row["repeat"])
    ].sort_values("step")
    parameters = json.loads(str(row["parameters"]))
    sizes: Sequence[int] = parameters["in_flight"]
    wanted = np.array([size_of_step(sizes, parameters["seed"], step) for step in range(len(own))], dtype=int)
    known = {key: row[key] for key in ("executor", "dtype")} | {key: parameters[key] for key in ("shape", "top_k")}
    own = own.assign(
        **known,
        context=int(str(row["prompt_tokens"])),
        round=np.arange(len(own)) // len(sizes),
        asked=wanted,
    )
    # A fork computes shared nodes once per path: there the tokens in flight are not the tree's nodes.
    whole = own["in_flight"] == own["asked"] if row["executor"] == "tree" else own["in_flight"] >= own["asked"]
    return own[whole].assign(in_flight=own["asked"])[[*_GROUP, *_ROUND, "in_flight", "seconds"]]


def _stock_seconds(rows: pd.DataFrame, steps: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Seconds of a step of plain stock decoding by dtype and context: the median over steps, as for the drafts' sizes."""
    plain = rows[rows["is_baseline"] & rows["error"].isna()]
    own = steps.merge(plain[["cell_id", "prompt_id", "repeat", "dtype", "prompt_tokens"]], on=["cell_id", "prompt_id", "repeat"])
    return own.groupby(["dtype", own["prompt_tokens"].astype(int)])["seconds"].median().to_dict()


def _ratio(seconds: np.ndarray, plain: np.ndarray, seed: int) -> dict[str, float]:
    """Ratio of the medians, and its interval; a plain step's own ratio is 1."""
    ratio = float(np.median(seconds) / np.median(plain))
    if len(seconds) < 2 or (seconds == plain).all():
        exact = 1.0 if len(seconds) and (seconds == plain).all() else np.nan
        return {"ratio": ratio, "ratio_low": exact, "ratio_high": exact}
    found = bootstrap(
        (seconds, plain),
        lambda left, right, axis: np.median(left, axis=axis) / np.median(right, axis=axis),
        paired=True,
        n_resamples=_RESAMPLES,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return {"ratio": ratio, "ratio_low": float(found.low), "ratio_high": float(found.high)}
