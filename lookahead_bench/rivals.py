"""Every method against the best of the stock engine's own drafters, in the same run.

The best is chosen by the very prompts that it is then compared on. Of several settings of about the same speed that is
the one that chance favoured, so a method looks a little slower against it than it is, the more so the more settings
there are and the fewer prompts; the interval holds the choice fixed and does not know of it. The fastest of several
settings of a method is favoured in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lookahead_bench.stats import CONTROL, NO_DRAFTS_EXPECTED, SETTINGS, UNIT, clusters, speedup_interval, timed_rows, verdict


def is_stock_drafter(strategy: str) -> bool:
    """Whether a method is one of the stock engine's that draft."""
    return strategy.startswith("vllm") and strategy not in NO_DRAFTS_EXPECTED


def stock_columns(
    cells: Mapping[str, pd.DataFrame], reach: Mapping[tuple[object, ...], tuple[float, float]], seed: int
) -> dict[str, dict[str, object]]:
    """What each cell has against the best stock drafter with the same data set and decoding settings, by cell id.

    Columns:
        best_stock: its cell id: of the stock drafters the one with the most decode tokens/s over the rows that all
            of them have; "" where there is none.
        speedup_vs_stock: decode tokens/s over its, over the rows that both have; 1 for itself, NaN for plain decoding;
            ``speedup_vs_stock_low``, ``speedup_vs_stock_high``: its 95 % interval, bootstrapped over prompts.
        verdict_vs_stock: as the verdict on the speed-up, by that interval; "" where there is none.

    Args:
        cells: rows by cell id.
        reach: by SETTINGS, the interval of plain decoding in a second process against itself.
        seed: of the bootstrap.
    """
    place = {cell_id: tuple(cell.iloc[0][name] for name in SETTINGS) for cell_id, cell in cells.items()}
    drafters: dict[tuple[object, ...], dict[str, pd.DataFrame]] = {}
    for cell_id, cell in cells.items():
        if is_stock_drafter(str(cell["strategy"].iloc[0])):
            drafters.setdefault(place[cell_id], {})[cell_id] = cell
    best = {settings: best_of(own) for settings, own in drafters.items()}
    return {
        cell_id: _against(cell_id, cell, best.get(place[cell_id], ""), cells, reach.get(place[cell_id]), seed)
        for cell_id, cell in cells.items()
    }


def best_of(drafters: Mapping[str, pd.DataFrame]) -> str:
    """The id of the fastest of some cells, over the rows that all of them have; "" if there are none.

    Cells that finished less than half of what the fullest one did, such as those of an engine that died, are left out.
    """
    rates: dict[str, pd.DataFrame] = {}
    for cell_id, cell in drafters.items():
        timed = timed_rows(cell)
        if len(timed):
            rates[cell_id] = timed.set_index(UNIT)
    if not rates:
        return ""
    fullest = max(map(len, rates.values()))
    rates = {cell_id: own for cell_id, own in rates.items() if 2 * len(own) >= fullest}
    common = set.intersection(*(set(own.index) for own in rates.values()))
    if not common:
        return ""
    units = pd.MultiIndex.from_tuples(sorted(common), names=UNIT)
    speed = {
        cell_id: own.loc[units, "tokens"].sum() / own.loc[units, "seconds"].sum()
        for cell_id, own in rates.items()
    }
    return max(speed, key=speed.__getitem__)


def _against(
    cell_id: str,
    cell: pd.DataFrame,
    best: str,
    cells: Mapping[str, pd.DataFrame],
    reach: tuple[float, float] | None,
    seed: int,
) -> dict[str, object]:
    found: dict[str, object] = {
        "best_stock": best,
        **dict.fromkeys(("speedup_vs_stock", "speedup_vs_stock_low", "speedup_vs_stock_high"), np.nan),
        "verdict_vs_stock": "",
    }
    if not best or cell["strategy"].iloc[0] in ("vllm", CONTROL):
        return found
    if cell_id == best:
        return found | {"speedup_vs_stock": 1.0}
    by_prompt = clusters(cell, cells[best])
    if by_prompt.empty:
        return found
    speedup, low, high = speedup_interval(*(by_prompt[name].to_numpy() for name in by_prompt), seed)
    judged = verdict(low, high, len(by_prompt), reach or (1.0, 1.0))
    return found | {
        "speedup_vs_stock": speedup,
        "speedup_vs_stock_low": low,
        "speedup_vs_stock_high": high,
        "verdict_vs_stock": judged,
    }
