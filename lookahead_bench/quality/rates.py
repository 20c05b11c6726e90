"""pass@1 of a cell from its rows; pure functions of frames."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.stats import binomtest

CONFIDENCE = 0.95
COLUMNS = (
    "problems_tested", "pass_at_1", "pass_at_1_low", "pass_at_1_high", "passes_gained", "passes_lost", "answers_cut",
)  # fmt: skip
_UNIT = ["prompt_id", "turn", "repeat"]


def pass_rates(cell: pd.DataFrame, baseline: pd.DataFrame | None) -> dict[str, float]:
    """How many problems a cell's answers solve.

    Args:
        cell, baseline: rows; of those that were run on their tests ``passed`` is not null.

    Returns:
        problems_tested: problems with an answer that was run.
        pass_at_1: mean over problems of the share of their repeats that passed (Chen et al. 2021,
            arXiv 2107.03374, with k = 1); pass_at_1_low, pass_at_1_high: Wilson's 95 % interval over problems.
        passes_gained, passes_lost: answers that passed where the baseline's did not, and the other way about.
        answers_cut: answers that ended at the limit of tokens.
        NaN where no answer was run; the interval where repeats of a problem differ, gained and lost without baseline.
    """
    run = _run(cell)
    if run.empty:
        return dict.fromkeys(COLUMNS, np.nan)
    shares = run.groupby("prompt_id")["passed"].mean()
    rate, (low, high) = float(shares.mean()), (np.nan, np.nan)
    if shares.isin((0.0, 1.0)).all():
        interval = binomtest(int(shares.sum()), len(shares)).proportion_ci(CONFIDENCE, method="wilson")
        low, high = float(interval.low), float(interval.high)
    gained = lost = math.nan
    if baseline is not None:
        both = run.merge(_run(baseline), on=_UNIT, suffixes=("", "_base"))
        gained = int((both["passed"] & ~both["passed_base"]).sum())
        lost = int((~both["passed"] & both["passed_base"]).sum())
    cut = int((run["finish_reason"] == "length").sum())
    return dict(zip(COLUMNS, (len(shares), rate, low, high, gained, lost, cut), strict=True))


def _run(cell: pd.DataFrame) -> pd.DataFrame:
    if "passed" not in cell:
        return pd.DataFrame(columns=[*_UNIT, "passed", "finish_reason"])
    run = cell.loc[cell["error"].isna() & cell["passed"].notna(), [*_UNIT, "passed", "finish_reason"]]
    return run.astype({"passed": bool})
