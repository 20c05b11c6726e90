"""Plain decoding against itself, and whether a method differs from it more often than that.

In half precision another number of requests in a batch means other kernels and another rounding, and
now and then another token: plain decoding in another batch is a right answer as well. So a method is
judged by a test whose null hypothesis is that its output is one more such answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import poisson_binom

SIGNIFICANCE = 0.05
WITHIN, ABOVE, UNDECIDED = "within the noise floor", "above the noise floor", "can't tell"
MIN_PROMPTS = 8
"""With fewer prompts a method that differs somewhere is not judged."""
QUARTILES = {"q1": 25, "median": 50, "q3": 75}


@dataclass(frozen=True, slots=True)
class Passes:
    """First divergences on one prompt: None where an output is the baseline's.

    Attributes:
        method: of the method's output.
        plain: of plain decoding's, one per other batch size; at least one.
    """

    method: int | None
    plain: tuple[int | None, ...]


def noise_columns(cell: pd.DataFrame, baseline: pd.DataFrame | None) -> dict[str, object]:
    """What a summary says of one cell's divergences.

    Columns:
        noise_floor: share of plain decoding's passes in other batch sizes that differ from its timed one.
        noise_passes: how many passes that is (prompts times batch sizes).
        near_tie_rate, mismatch_rate: share of the checked rows with that verdict.
        divergence_rate: share of the prompts of the noise floor on which the cell differs (first turns).
        noise_p: probability that so many differ, or more, if the cell's output is one more pass of plain decoding.
        noise_verdict: ``within the noise floor``, ``above the noise floor`` or ``can't tell``; "" for the
            baseline, and where there is no noise floor.
        divergence_q1, divergence_median, divergence_q3: index of the first differing token, quartiles over all
            rows that differ; with ``noise_`` before them, over the passes of plain decoding that do.

    Args:
        cell: rows of one cell.
        baseline: rows of the cell that it is compared with; None if there is none.
    """
    good = cell[cell["error"].isna()]
    checked = good["equivalence"].isin(["identical", "near_tie", "mismatch"]).sum()
    pairs = paired(cell, baseline) if baseline is not None else []
    noise = [at for passes in plain_passes(baseline).values() for at in passes.values()] if baseline is not None else []
    is_baseline = bool(cell["is_baseline"].iloc[0])
    p = p_value(pairs)
    return {
        "noise_floor": _share(noise) if noise else _floor_of_earlier_versions(baseline),
        "noise_passes": len(noise),
        "near_tie_rate": (good["equivalence"] == "near_tie").sum() / checked if checked else np.nan,
        "mismatch_rate": (good["equivalence"] == "mismatch").sum() / checked if checked else np.nan,
        "divergence_rate": _share([pair.method for pair in pairs]),
        "noise_p": p,
        "noise_verdict": "" if is_baseline else judge(pairs, p),
        **_quartiles("divergence", good["first_divergence"].dropna()),
        **_quartiles("noise_divergence", [at for at in noise if at is not None]),
    }


def p_value(pairs: Sequence[Passes]) -> float:
    """How likely it is that a method differs on as many prompts, or more, if it is plain decoding once more.

    An exact permutation test within prompts. Of a prompt's passes, the method's and plain decoding's, any could
    then be the method's. So if D of K + 1 differ, the method's is one of them with probability D / (K + 1), and
    the number of prompts on which it differs is a sum of such draws (Poisson binomial). With one pass of plain
    decoding that is McNemar's exact test, one-sided.

    Returns:
        NaN without prompts.
    """
    if not pairs:
        return np.nan
    chances = [
        (sum(at is not None for at in pair.plain) + (pair.method is not None)) / (len(pair.plain) + 1) for pair in pairs
    ]
    found = sum(pair.method is not None for pair in pairs)
    return float(np.clip(poisson_binom.sf(found - 1, chances), 0, 1)) if found else 1.0


def judge(pairs: Sequence[Passes], p: float) -> str:
    """A verdict by `p_value`; "" without prompts.

    A method that differs nowhere is within any floor. Otherwise it takes MIN_PROMPTS prompts, which is more than it
    takes for p to become small at all.
    """
    if not pairs:
        return ""
    if all(pair.method is None for pair in pairs):
        return WITHIN
    if len(pairs) < MIN_PROMPTS:
        return UNDECIDED
    return ABOVE if p < SIGNIFICANCE else WITHIN


def paired(cell: pd.DataFrame, baseline: pd.DataFrame) -> list[Passes]:
    """The cell's and plain decoding's divergences, for each prompt of the noise floor that the cell has done."""
    own = cell[(cell["turn"] == 0) & (cell["repeat"] == 0) & cell["error"].isna() & (cell["equivalence"] != "unchecked")]
    by_prompt = dict(zip(own["prompt_id"], own["first_divergence"], strict=True))
    found = []
    for prompt, passes in plain_passes(baseline).items():
        if prompt in by_prompt and passes:
            at = by_prompt[prompt]
            found.append(Passes(None if pd.isna(at) else int(at), tuple(passes.values())))
    return found


def plain_passes(baseline: pd.DataFrame) -> dict[str, dict[str, int | None]]:
    """First divergences of plain decoding from itself, by prompt and then by batch size."""
    if "other_batches" not in baseline:
        return {}
    known = baseline[baseline["other_batches"].notna() & (baseline["turn"] == 0) & (baseline["repeat"] == 0)]
    return {prompt: json.loads(text) for prompt, text in zip(known["prompt_id"], known["other_batches"], strict=True)}


def _floor_of_earlier_versions(baseline: pd.DataFrame | None) -> float:
    """Share of prompts, from runs that stored one pass and not where it differed."""
    if baseline is None or "identical_other_batch" not in baseline:
        return np.nan
    same = baseline["identical_other_batch"].dropna().astype(bool)
    return float(1 - same.mean()) if len(same) else np.nan


def _share(divergences: Sequence[int | None]) -> float:
    return float(np.mean([at is not None for at in divergences])) if divergences else np.nan


def _quartiles(name: str, positions: Iterable[int]) -> Mapping[str, float]:
    values = np.asarray(list(positions), dtype=float)
    return {
        f"{name}_{quartile}": float(np.percentile(values, percent)) if len(values) else np.nan
        for quartile, percent in QUARTILES.items()
    }
