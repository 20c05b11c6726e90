"""From rows to statements: rates, speed-ups with their uncertainty, verdicts. No files, no engines.

Decode tokens of a row are ``new_tokens - 1``: the first token comes out of the prefill. Rows that
failed, and rows of a single token (nothing was decoded), take no part in any rate.
With several requests at once all times are a request's own, so the rates are per request.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, norm
from scipy.stats import t as student_t

from lookahead_bench.decomposition import decomposition_columns
from lookahead_bench.noise import noise_columns
from lookahead_bench.quality.rates import pass_rates

CONFIDENCE = 0.95
MIN_PROMPTS = 5
"""Fewer prompts than this decide nothing, whatever the interval says.

A resample of n prompts holds one prompt n times with probability n^-n. With 5 prompts or more that
is rarer than the tail that the interval leaves out; with 4 the interval's ends are the extreme
prompts themselves, and it can't become as wide as it should be.
"""
RESAMPLES = 4000
CONTROL = "vllm_control"
"""The baseline once more, in a process of its own."""
NO_CONTROL = (1.0, 1.0)
NO_DRAFTS_EXPECTED = ("vllm", "vllm_control", "autoregressive")
SETTINGS = ("model", "dataset", "dtype", "concurrency", "temperature", "max_new_tokens")
"""What a cell and the baseline that it is compared with have in common."""

_DESCRIBING = (
    "cell_id", "label", "strategy", "parameters", "window", "ngram", "branches", "model", "dataset", "executor",
    "dtype", "concurrency", "is_baseline", "shared_pool",
)  # fmt: skip
UNIT = ["prompt_id", "turn", "repeat"]


def summarise(
    rows: pd.DataFrame, steps: pd.DataFrame, seed: int, costs: Sequence[Mapping[str, Any]] = ()
) -> pd.DataFrame:
    """One line per cell.

    Columns, besides those that describe the cell:
        tokens_per_second: all decode tokens over all decode seconds.
        tokens_per_second_mean: mean over rows of a row's decode tokens per second.
        speedup: decode tokens/s over the baseline's, both summed over the rows that they share
            (same prompt, turn and repeat); ``speedup_low``, ``speedup_high``: its 95 % interval,
            bootstrapped over prompts.
        speedup_mean: mean over those rows of the row's own ratio.
        verdict: ``faster``, ``slower`` or ``can't tell``, see `verdict`; "" for the baseline itself.
        step_compression: decode tokens per decoding step, S, over the rows that the speed-up is taken of; without
            a baseline over all that decoded something.
        step_cost: decode seconds per step over the baseline's, over the same rows, c; speedup = S / c.
        checked, identical, near_ties, mismatches: rows by their verdict on the tokens;
            equivalence_rate: identical / checked.
        noise_floor, noise_verdict and the like: how often the baseline itself gives other tokens when it has
            other requests beside it, and whether the cell differs more often; see `noise.noise_columns`.
        shared_pool: whether outputs of earlier prompts served later ones.
        prompts, rows_measured, failures: prompts and rows without an error, rows with one.
        drafted, accepted: tokens; nodes_per_step: mean tokens in flight, the root included.
        acceptance_histogram, acceptance_by_depth, the shares of a step's time, predicted_speedup and the like: see
            `decomposition.decomposition_columns`.
        prefill_seconds: median.
        loaded_rows: rows without an error that were begun on a machine that something else had as well; NaN if unknown.
        problems_tested, pass_at_1 with its interval, passes_gained, passes_lost, answers_cut: see `pass_rates`.
        speedup_vs_stock and the like: against the best of the stock engine's drafters; see `rivals.stock_columns`.
        throughput and the like: what several requests in flight get and yield; see `load.load_columns`.
        note: what is wrong with the cell, in words; "" if nothing is.
    A number that can't be had (nothing decoded, no baseline, nothing checked) is NaN.
    Data sets come in alphabetical order, in each the numbers of requests at once; then the baseline, its control, the stock engine's
    drafters, plain decoding through the plug-in, then the methods by name and parameters.

    Args:
        rows, steps: frames of `store.load_results`.
        seed: of the bootstrap.
        costs: curves of step costs for the prediction; what provenance.json has as ``step_costs``.
    """
    frame = rows.copy()
    for name in ("parameters", "temperature", "max_new_tokens", "identical_other_batch", "first_divergence"):
        if name not in frame:
            frame[name] = None
    # Runs of earlier versions have no such column: nothing was shared.
    frame["shared_pool"] = frame["shared_pool"].eq(True) if "shared_pool" in frame else False
    groups = {cell_id: cell for cell_id, cell in frame.groupby("cell_id", sort=False)}
    baselines = {_settings(cell): cell for cell in groups.values() if cell["is_baseline"].iloc[0]}
    own_steps = dict(iter(steps.groupby("cell_id"))) if len(steps) else {}
    controls = {
        _settings(cell): _against(timed_rows(cell), baselines.get(_settings(cell)), False, seed, NO_CONTROL)
        for cell in groups.values()
        if cell["strategy"].iloc[0] == CONTROL
    }
    # Which need this module's intervals.
    from lookahead_bench.load import load_columns
    from lookahead_bench.rivals import stock_columns

    loads = load_columns(frame, steps, seed)
    reaches = {place: (control["speedup_low"], control["speedup_high"]) for place, control in controls.items()}
    rivals = stock_columns(groups, reaches, seed)
    lines = []
    for cell_id, cell in groups.items():
        control = controls.get(_settings(cell), {})
        reach = (control.get("speedup_low", np.nan), control.get("speedup_high", np.nan))
        line = _line(cell, own_steps.get(cell_id, steps.iloc[:0]), baselines.get(_settings(cell)), seed, reach, costs)
        lines.append(line | loads[str(cell_id)] | rivals[cell_id])
    lines.sort(key=_place)
    summary = pd.DataFrame(lines, columns=None if lines else [*_DESCRIBING, "speedup", "note"])
    return summary.astype(dict.fromkeys(("window", "ngram", "branches"), "Int64"))


def _place(line: dict[str, object]) -> tuple[object, ...]:
    """Where a summary's line stands among the others."""
    name = str(line["strategy"])
    kinds = (bool(line["is_baseline"]), name == CONTROL, name.startswith("vllm"), name == "autoregressive")
    sizes = [float("-inf") if pd.isna(line[key]) else float(line[key]) for key in ("window", "ngram", "branches")]
    return (str(line["dataset"]), line["concurrency"], [not kind for kind in kinds], name, *sizes)


def speedup_interval(
    tokens: np.ndarray, seconds: np.ndarray, base_tokens: np.ndarray, base_seconds: np.ndarray, seed: int
) -> tuple[float, float, float]:
    """Ratio of two rates and its interval, by a bootstrap that resamples prompts.

    The estimate is a ratio of sums. A prompt's tokens and seconds under both methods stay
    together, so what makes a prompt slow for both cancels out. Intervals are bias-corrected and
    accelerated (Efron 1987, "Better bootstrap confidence intervals", JASA 82), or percentiles
    where those are not defined. A bootstrap over n prompts is too narrow by about
    sqrt((n-1)/n) and knows no t distribution; the level asked of it is raised for that
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", Am. Stat. 69:4,
    the expanded percentile interval).

    Args:
        tokens, seconds, base_tokens, base_seconds: float [prompts], each prompt's sums.
        seed: of the resampling.

    Returns:
        Speed-up, low, high. One prompt alone has no interval: low and high are NaN.
    """

    def ratio(tokens, seconds, base_tokens, base_seconds, axis=-1):
        return _rate(tokens, seconds, axis) / _rate(base_tokens, base_seconds, axis)

    return _interval((tokens, seconds, base_tokens, base_seconds), ratio, seed)


def change_interval(before: Sequence[np.ndarray], after: Sequence[np.ndarray], seed: int) -> tuple[float, float, float]:
    """By what factor a speed-up changed from one run to another, and its interval over prompts.

    Args:
        before, after: of each run the arguments of `speedup_interval`, for the same prompts in the same order.
        seed: of the resampling.

    Returns:
        As `speedup_interval`.
    """

    def change(*sample, axis=-1):
        (t0, s0, bt0, bs0), (t1, s1, bt1, bs1) = sample[:4], sample[4:]
        before = _rate(t0, s0, axis) / _rate(bt0, bs0, axis)
        return _rate(t1, s1, axis) / _rate(bt1, bs1, axis) / before

    return _interval((*before, *after), change, seed)


def _rate(tokens: np.ndarray, seconds: np.ndarray, axis: int) -> np.ndarray:
    return tokens.sum(axis) / seconds.sum(axis)


def _interval(
    values: Sequence[np.ndarray], statistic: Callable[..., np.ndarray], seed: int
) -> tuple[float, float, float]:
    """A statistic of arrays [prompts] and its interval, by a bootstrap that resamples prompts."""
    sample = tuple(np.asarray(array, dtype=float) for array in values)
    estimate = float(statistic(*sample))
    if len(sample[0]) < 2:
        return estimate, np.nan, np.nan
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            # Where all prompts have one ratio BCa is 0/0; scipy warns and answers NaN.
            warnings.simplefilter("ignore")
            interval = bootstrap(
                sample,
                statistic,
                n_resamples=RESAMPLES,
                batch=RESAMPLES,
                vectorized=True,
                paired=True,
                confidence_level=_expanded_level(len(sample[0])),
                method=method,
                random_state=np.random.default_rng(seed),
            ).confidence_interval
        if np.isfinite(interval.low) and np.isfinite(interval.high):
            break
    return estimate, float(interval.low), float(interval.high)


def _expanded_level(prompts: int) -> float:
    quantile = student_t.ppf((1 + CONFIDENCE) / 2, prompts - 1) * np.sqrt(prompts / (prompts - 1))
    return float(1 - 2 * norm.sf(quantile))


def verdict(low: float, high: float, prompts: int, control: tuple[float, float] = NO_CONTROL) -> str:
    """What an interval of the speed-up over ``prompts`` prompts lets one say.

    Args:
        low, high: the interval.
        prompts: how many prompts are behind it.
        control: the same interval of plain decoding in a second process. Prompts are resampled,
            processes are not, so what two equal processes differ by has to be exceeded as well, in both
            directions: which of the two was the faster one is chance.
    """
    reach = np.fmax(1.0, np.fmax(control[1], 1 / control[0]))
    if prompts >= MIN_PROMPTS and low > reach:
        return "faster"
    if prompts >= MIN_PROMPTS and high < 1 / reach:
        return "slower"
    return "can't tell"


def acceptance_histogram(steps: pd.DataFrame) -> pd.DataFrame:
    """How many steps emitted how many tokens: columns cell_id, dataset, accepted, count."""
    return steps.groupby(["cell_id", "dataset", "accepted"], sort=True).size().reset_index(name="count")


def drafted_nothing(strategies: Iterable[str], decode_steps: float, drafted: float) -> bool:
    """Whether a method that should draft took steps and never did: it was not on at all."""
    return not set(strategies) & set(NO_DRAFTS_EXPECTED) and decode_steps > 0 and drafted == 0


def _line(
    cell: pd.DataFrame,
    steps: pd.DataFrame,
    baseline: pd.DataFrame | None,
    seed: int,
    control: tuple[float, float],
    costs: Sequence[Mapping[str, Any]],
) -> dict[str, object]:
    first = cell.iloc[0]
    good = cell[cell["error"].isna()]
    timed = timed_rows(cell)
    tokens, seconds, passes = (timed[name].sum() for name in ("tokens", "seconds", "steps"))
    pairs = _paired(timed, baseline) if baseline is not None else timed.iloc[:0]
    # S and c, and with them the speed-up, are of the same rows.
    counted = timed if pairs.empty else pairs
    compression = _divide(counted["tokens"].sum(), counted["steps"].sum())
    kinds = good["equivalence"].value_counts()
    identical, near_ties, mismatches = (int(kinds.get(k, 0)) for k in ("identical", "near_tie", "mismatch"))
    checked = identical + near_ties + mismatches
    drafted = float(good["drafted_tokens"].fillna(0).sum())
    failures = len(cell) - len(good)
    loaded = good["loaded"].dropna() if "loaded" in good else good.iloc[:0]
    loaded_rows = int(loaded.sum()) if len(loaded) else np.nan
    return {
        **{name: first[name] for name in _DESCRIBING},
        "tokens_per_second": _divide(tokens, seconds),
        "tokens_per_second_mean": (timed["tokens"] / timed["seconds"]).mean(),
        **_against(timed, baseline, bool(first["is_baseline"]), seed, control),
        "step_compression": compression,
        "checked": checked,
        "identical": identical,
        "near_ties": near_ties,
        "mismatches": mismatches,
        "equivalence_rate": _divide(identical, checked),
        **noise_columns(cell, baseline),
        "prompts": good["prompt_id"].nunique(),
        "rows_measured": len(good),
        "failures": failures,
        "drafted": int(drafted),
        "accepted": int(good["accepted_tokens"].fillna(0).sum()),
        "nodes_per_step": float(steps["in_flight"].mean()) if len(steps) else np.nan,
        **decomposition_columns(cell, steps, counted, compression, costs),
        "prefill_seconds": good["prefill_seconds"].median(),
        **pass_rates(cell, baseline),
        "loaded_rows": loaded_rows,
        "note": _note(str(first["strategy"]), failures, len(cell), mismatches, passes, drafted, is_loaded(loaded_rows, len(good))),
    }


def _against(
    timed: pd.DataFrame, baseline: pd.DataFrame | None, is_baseline: bool, seed: int, control: tuple[float, float]
) -> dict[str, object]:
    nothing = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "speedup_mean", "step_cost"), np.nan)
    if baseline is None:
        return {**nothing, "verdict": "can't tell"}
    pairs = _paired(timed, baseline)
    if pairs.empty:
        return {**nothing, "verdict": "" if is_baseline else "can't tell"}
    by_prompt = _clusters(pairs)
    speedup, low, high = speedup_interval(*(by_prompt[name].to_numpy() for name in by_prompt), seed)
    own = (pairs["tokens"] / pairs["seconds"]) / (pairs["tokens_base"] / pairs["seconds_base"])
    step_seconds = pairs["seconds"].sum() / pairs["steps"].sum()
    return {
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "speedup_mean": own.mean(),
        "step_cost": step_seconds / (pairs["seconds_base"].sum() / pairs["steps_base"].sum()),
        "verdict": "" if is_baseline else verdict(low, high, len(by_prompt), control),
    }


def clusters(cell: pd.DataFrame, baseline: pd.DataFrame) -> pd.DataFrame:
    """What `speedup_interval` takes, as columns by prompt: sums over the rows that both have."""
    return _clusters(_paired(timed_rows(cell), baseline))


def _paired(timed: pd.DataFrame, baseline: pd.DataFrame) -> pd.DataFrame:
    return timed.merge(timed_rows(baseline), on=UNIT, suffixes=("", "_base"))


def _clusters(pairs: pd.DataFrame) -> pd.DataFrame:
    # All turns and repeats of a prompt are one cluster: they are not independent of each other.
    return pairs.groupby("prompt_id")[["tokens", "seconds", "tokens_base", "seconds_base"]].sum()


def timed_rows(cell: pd.DataFrame) -> pd.DataFrame:
    """Rows that decoded something, as plain floats: unit, tokens, seconds, steps."""
    timed = pd.DataFrame(
        {
            **{name: cell[name] for name in UNIT},
            "tokens": cell["new_tokens"].astype("Float64").to_numpy(float, na_value=np.nan) - 1,
            "seconds": cell["decode_seconds"].astype("Float64").to_numpy(float, na_value=np.nan),
            "steps": cell["decode_steps"].astype("Float64").to_numpy(float, na_value=np.nan),
        }
    )
    measured = (timed["tokens"] > 0) & (timed["seconds"] > 0) & (timed["steps"] > 0)
    return timed[cell["error"].isna() & measured]


def is_loaded(loaded_rows: float, rows: int) -> bool:
    """Whether a cell counts as measured on a loaded machine: most of its rows were."""
    return loaded_rows > rows / 2


def _note(
    strategy: str, failures: int, rows: int, mismatches: int, steps: float, drafted: float, loaded: bool
) -> str:
    notes = []
    if failures:
        notes.append(f"{failures} of {rows} requests failed")
    if mismatches:
        notes.append(f"{mismatches} outputs differ from plain decoding")
    if drafted_nothing([strategy], steps, drafted):
        notes.append("drafted nothing")
    if loaded:
        notes.append("measured on a loaded machine")
    return "; ".join(notes)


def _settings(cell: pd.DataFrame) -> tuple[object, ...]:
    first = cell.iloc[0]
    return tuple(first[name] for name in SETTINGS)


def _divide(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else np.nan
