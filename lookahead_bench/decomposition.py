"""Why a method is as fast as it is: what its steps accept, what their time goes into, and what they should cost.

The prediction knows nothing of the run's own seconds: it takes the c(T) that `+sweep=cost` measured with drafts that are
never right, on this machine and with this model and these engine settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

PARTS = ("draft", "forward", "verify", "commit")
TEXT_COLUMNS = ("acceptance_histogram", "acceptance_by_depth", "tries_by_depth")
"""Columns of JSON text."""
_ROW = ["prompt_id", "turn", "repeat"]


def decomposition_columns(
    cell: pd.DataFrame, steps: pd.DataFrame, units: pd.DataFrame, compression: float, costs: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """What a summary says of one cell's steps.

    Columns:
        acceptance_histogram: JSON, steps by the tokens that they emitted: {"1": 40, "3": 12}.
        acceptance_by_depth: JSON list: the chance that the drafted token at depth d = 1, 2, … is accepted, given that the one
            above it was; ``tries_by_depth``: in how many steps one was held against the model's choice there.
            "" for all three where the steps don't say; see `acceptance_by_depth`.
        draft_share, forward_share, verify_share, commit_share, rest_share: of the seconds of all steps; they add up to 1.
            The rest is vLLM's scheduler, input preparation and output. NaN for stock engines, which tell no parts.
        predicted_step_cost: mean over the steps of c(T) as measured on its own, against a plain step of stock decoding;
            ``predicted_speedup``: S over that. See `predicted_step_cost`.

    Args:
        cell, steps: of one cell.
        units: prompt_id, turn and repeat of the rows that S is taken of.
        compression: S.
        costs: what provenance.json has as ``step_costs``.
    """
    cost = predicted_step_cost(cell, steps, units, costs)
    return {
        **_acceptance(steps),
        **_shares(steps, str(cell["executor"].iloc[0])),
        "predicted_step_cost": cost,
        "predicted_speedup": compression / cost,
    }


def acceptance_by_depth(steps: pd.DataFrame) -> pd.DataFrame:
    """Position-wise acceptance: a line per cell and depth, 1 being a token right below the last accepted one.

    A step tries depth d if a drafted token there was held against the model's choice, which takes all above it to be right.
    Where a stock engine's output ends, what came of the rest of the draft isn't seen; no depth is counted there, whether
    it was right or not, so the rates are not moved by it.

    Returns:
        Columns cell_id, depth, tries, accepted (steps that accepted it), rate (accepted / tries). No lines for steps of
        earlier versions, which don't say how far down they tried.
    """
    lines = []
    known = steps.dropna(subset=["depth", "matched"]) if {"depth", "matched"} <= set(steps) else steps.iloc[:0]
    for cell_id, own in known.groupby("cell_id", sort=False):
        deepest = int(own["depth"].max())
        tries, accepted = (_at_least(own[name], deepest) for name in ("depth", "matched"))
        lines += [(cell_id, d + 1, int(tries[d]), int(accepted[d]), accepted[d] / tries[d]) for d in range(deepest)]
    return pd.DataFrame(lines, columns=["cell_id", "depth", "tries", "accepted", "rate"])


def predicted_step_cost(
    cell: pd.DataFrame, steps: pd.DataFrame, units: pd.DataFrame, costs: Sequence[Mapping[str, Any]]
) -> float:
    """Mean of c(T) over a cell's steps, by the curve of the context nearest to each row's mean context.

    Between two measured T the curve is taken as straight.

    Returns:
        NaN where nothing was measured: no curve of the cell's executor and dtype, several requests at once, or a step of
        more tokens than the curve has; and for forks, whose curve is over a draft's nodes, while steps have the tokens computed.
    """
    first = cell.iloc[0]
    curves = next((found["curves"] for found in costs if (found["executor"], found["dtype"]) == (first["executor"], first["dtype"])), {})
    if not curves or first["executor"] != "tree" or first["concurrency"] != 1 or steps.empty or "prompt_tokens" not in cell:
        return np.nan
    contexts = (cell["prompt_tokens"] + cell["new_tokens"] / 2).rename("context")
    own = steps.merge(units[_ROW], on=_ROW).merge(cell[_ROW].join(contexts), on=_ROW)
    measured = np.array(sorted(map(int, curves)))
    nearest = np.abs(own["context"].to_numpy(float)[:, None] - measured).argmin(axis=1)
    predicted = np.full(len(own), np.nan)
    for place, context in enumerate(measured):
        sizes, values = np.array(curves[str(context)], dtype=float).T
        at = nearest == place
        predicted[at] = np.interp(own["in_flight"].to_numpy(float)[at], sizes, values, right=np.nan)
    return float(predicted.mean()) if len(predicted) else np.nan


def _acceptance(steps: pd.DataFrame) -> dict[str, str]:
    counts = steps["accepted"].value_counts().sort_index() if "accepted" in steps else pd.Series(dtype=int)
    by_depth = acceptance_by_depth(steps)
    return {
        "acceptance_histogram": json.dumps({str(tokens): int(count) for tokens, count in counts.items()}) if len(counts) else "",
        "acceptance_by_depth": json.dumps([round(rate, 6) for rate in by_depth["rate"]]) if len(by_depth) else "",
        "tries_by_depth": json.dumps(by_depth["tries"].tolist()) if len(by_depth) else "",
    }


def _shares(steps: pd.DataFrame, executor: str) -> dict[str, float]:
    names = [f"{part}_seconds" for part in PARTS]
    total = steps["seconds"].sum() if "seconds" in steps else 0
    if executor == "stock" or not total or not set(names) <= set(steps):
        return dict.fromkeys((*(f"{part}_share" for part in PARTS), "rest_share"), np.nan)
    shares = {f"{part}_share": float(steps[name].sum() / total) for part, name in zip(PARTS, names, strict=True)}
    return shares | {"rest_share": 1 - sum(shares.values())}


def _at_least(values: pd.Series, deepest: int) -> np.ndarray:
    """How many values are 1 or more, 2 or more, up to ``deepest``; int [deepest]."""
    counts = np.bincount(values.to_numpy(int), minlength=deepest + 1)
    return counts[::-1].cumsum()[::-1][1 : deepest + 1]
