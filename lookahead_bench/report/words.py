"""What a sweep's numbers say, in sentences; pure functions of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from lookahead_bench import provenance
from lookahead_bench.stats import NO_DRAFTS_EXPECTED, is_loaded

if TYPE_CHECKING:
    from lookahead_bench.store import Results

Cell = Mapping[str, Any] | pd.Series

LABELLED = ("window", "ngram", "branches")
"""Parameters that a method's label shows anyway."""

SHORT = {
    "num_speculative_tokens": "k",
    "prompt_lookup_min": "min",
    "prompt_lookup_max": "max",
    "suffix_decoding_max_tree_depth": "depth",
    "suffix_decoding_max_spec_factor": "factor",
    "suffix_decoding_min_token_prob": "min_prob",
    "suffix_decoding_max_cached_requests": "cached",
}
"""Parameters of the stock engine's drafters whose names would fill a line."""

# Worst last: of several repeats of one prompt the worst one counts.
SEVERITY = ("identical", "near_tie", "unchecked", "mismatch")
# Below this many prompts a data set's mean still moves a lot with the choice of prompts.
FEW_PROMPTS = 10

LOADED = " (loaded)"
"""Behind the name of a cell that was measured on a loaded machine."""


def cell_labels(frame: pd.DataFrame) -> list[str]:
    """A name per line of a summary, or of a part of it, that no other method there has.

    The method's label, with the executor where it is not the usual one, "(shared pool)" where outputs of
    earlier prompts serve later ones, the number of requests at once where there are several such numbers, and those of
    its parameters that tell it from another method of the same label.
    """
    shared = frame["shared_pool"] if "shared_pool" in frame else [False] * len(frame)
    labels = [
        f"{label}{' (fork)' if executor == 'fork' else ''}{' (shared pool)' if pool else ''}"
        for label, executor, pool in zip(frame["label"], frame["executor"], shared, strict=True)
    ]
    if "concurrency" in frame and frame["concurrency"].nunique() > 1:
        labels = [f"{label}, {number} at once" for label, number in zip(labels, frame["concurrency"], strict=True)]
    parameters = [_parameters(text) for text in frame["parameters"]] if "parameters" in frame else []
    values: dict[tuple[str, str], set[str]] = {}
    for label, own in zip(labels, parameters):
        for key, value in own.items():
            values.setdefault((label, key), set()).add(str(value))
    return [
        " ".join([label, *(f"{SHORT.get(key, key)}={own[key]}" for key in own if len(values[label, key]) > 1)])
        for label, own in zip(labels, parameters or [{}] * len(labels), strict=True)
    ]


def labels(results: Results) -> dict[str, str]:
    """The name of each cell in the results, by its id."""
    return dict(zip(results.summary["cell_id"], cell_labels(results.summary), strict=True))


def _parameters(text: object) -> dict[str, Any]:
    """A cell's parameters as they are stored (JSON), without those that its label has already."""
    known = json.loads(text) if isinstance(text, str) and text else {}
    return {key: value for key, value in known.items() if key not in LABELLED}


def equivalence_counts(rows: pd.DataFrame) -> dict[str, int]:
    """Prompts and turns of one cell by verdict, each once with its worst repeat; failures left out."""
    checked = rows[rows["error"].isna()]
    # A run that goes on has rows without a verdict.
    known = checked["equivalence"].where(checked["equivalence"].isin(SEVERITY), "unchecked")
    ranks = known.map(SEVERITY.index)
    worst = ranks.groupby([checked["prompt_id"], checked["turn"]]).max()
    return {name: int((worst == rank).sum()) for rank, name in enumerate(SEVERITY)}


def equivalence_text(counts: dict[str, int]) -> str:
    """ "12/12" identical, or "9/12, 3 near ties": what ``equivalence_counts`` says, in short."""
    total = sum(counts.values())
    if total == 0:
        return "none"
    parts = [f"{counts['identical']}/{total}"]
    if counts["near_tie"]:
        parts.append(plural(counts["near_tie"], "near tie"))
    if counts["mismatch"]:
        parts.append(plural(counts["mismatch"], "mismatch", "mismatches"))
    if counts["unchecked"]:
        parts.append(f"{counts['unchecked']} unchecked")
    return ", ".join(parts)


def verdicts(results: Results) -> list[str]:
    """The answer first: a sentence per data set on speed, one on the outputs of all."""
    summary, name = results.summary, labels(results)
    sentences = []
    for dataset, cells in summary.groupby("dataset", sort=False):
        methods = cells[~cells["strategy"].isin(NO_DRAFTS_EXPECTED)].dropna(subset="speedup")
        faster = methods[methods["verdict"] == "faster"]
        if methods.empty:
            sentences.append(f"{dataset}: no method besides plain decoding was measured.")
        elif faster.empty:
            best = methods.loc[methods["speedup"].idxmax()]
            sentences.append(
                f"{dataset}: no method is certainly faster than plain decoding; "
                f"the best, {name[best['cell_id']]}, has {_speedup(best)}."
            )
        else:
            best = faster.loc[faster["speedup"].idxmax()]
            sentences.append(
                f"{dataset}: {name[best['cell_id']]} is the fastest, {_speedup(best)} plain decoding; "
                f"{best['step_compression']:.2f} tokens a step at {best['step_cost']:.2f}× the cost of a plain step."
            )
    sentences.append(_outputs(results))
    return sentences


def has_stock_drafter(results: Results) -> bool:
    """Whether any method is compared with a drafter of stock vLLM's."""
    # A run of an earlier version has no such column.
    return "best_stock" in results.summary and bool(results.summary["best_stock"].isin(results.summary["cell_id"]).any())


def against_stock(results: Results) -> list[str]:
    """Per data set the fastest method of the plug-in against the fastest of the stock engine's own drafters."""
    if not has_stock_drafter(results):
        return []
    summary, name = results.summary, labels(results)
    sentences = []
    for best_stock, cells in summary[summary["best_stock"].isin(summary["cell_id"])].groupby("best_stock", sort=False):
        drafting = cells[~cells["strategy"].isin(NO_DRAFTS_EXPECTED)]
        stock = drafting["executor"] == "stock"
        methods = drafting[~stock].dropna(subset="speedup_vs_stock")
        if methods.empty:
            continue
        best = methods.loc[methods["speedup_vs_stock"].idxmax()]
        chosen = ""
        if len(methods) > 1 or stock.sum() > 1:
            chosen = f" Each is the fastest of its kind on these very prompts, of {len(methods)} and of {stock.sum()}."
        sentences.append(
            f"{best['dataset']}: {name[best['cell_id']]} has {_speedup(best, 'speedup_vs_stock')} the tokens/s of the best stock "
            f"drafter, {name[best_stock]}: {best['verdict_vs_stock']}.{chosen}"
        )
    return sentences


def control(results: Results) -> list[str]:
    """Per data set whether plain decoding, measured against itself, comes out as equal."""
    sentences = []
    controls = results.summary[results.summary["strategy"] == "vllm_control"]
    for cell in controls.dropna(subset=["speedup_low", "speedup_high"]).to_dict("records"):
        inside = cell["speedup_low"] <= 1.0 <= cell["speedup_high"]
        meaning = (
            "contains 1.0, as it should"
            if inside
            else "does not contain 1.0: differences of this size mean nothing here"
        )
        sentences.append(
            f"{cell['dataset']}: plain against plain is {cell['speedup']:.3f}×; "
            f"its interval [{cell['speedup_low']:.3f}, {cell['speedup_high']:.3f}] {meaning}."
        )
    return sentences


def kernels(results: Results) -> list[str]:
    """What of the speed-ups is the project's own kernels, where the plug-in's engines use them.

    Told by ``autoregressive``, which decodes plainly in the plug-in's engine: what it has over stock
    plain decoding every method of the plug-in has, and no stock drafter.
    """
    engines = (results.provenance.get("plan") or {}).get("engines") or []
    if not any(engine.get("native_kernels") for engine in engines):
        return []
    about = "The plug-in's engines use the project's own kernels, stock vLLM's use vLLM's"
    summary, name = results.summary, labels(results)
    plain = summary[summary["strategy"] == "autoregressive"].dropna(subset="speedup")
    if plain.empty:
        return [f"{about}; only with autoregressive in the run can what they bring be told from what a method brings."]
    return [
        f"{cell['dataset']}: {about}. {name[cell['cell_id']]}, which drafts nothing, has {_speedup(cell)} plain "
        "decoding; what a method has beyond that is the method's."
        for cell in plain.to_dict("records")
    ]


def noise_floor(results: Results) -> list[str]:
    """Per data set how often plain decoding differs from itself, how that was found, and who differs more often."""
    how = results.provenance.get("noise_floor") or {}
    summary, name = results.summary, labels(results)
    several = "concurrency" in summary and summary["concurrency"].nunique() > 1
    sentences = []
    for place, cells in summary.groupby(["dataset", "concurrency"] if several else ["dataset"], sort=False):
        about = f"{place[0]}, {place[1]} at once" if several else str(place[0])
        floor, said = cells["noise_floor"].dropna(), how.get(about)
        if floor.empty:
            sentences.append(f"{about}: noise floor {said or 'not measured'}.")
            continue
        # A run of an earlier version has one pass per prompt, and doesn't say how many.
        passes = int(cells["noise_passes"].max()) if "noise_passes" in cells else 0
        of = f"in {floor.iloc[0]:.0%} of {plural(passes, 'pass', 'passes')}" if passes else f"on {floor.iloc[0]:.0%} of the prompts"
        sentences.append(f"{about}: plain decoding differs from itself {of}{f' ({said})' if said else ''}: the noise floor.")
        if "noise_verdict" in cells:
            differing = cells[(cells["divergence_rate"] > 0) & ~cells["is_baseline"]]
            sentences += [f"{about}: {name[cell['cell_id']]} {_judged(cell)}" for cell in differing.to_dict("records")]
    return sentences


def _judged(cell: Mapping[str, Any]) -> str:
    """How often a method differs from plain decoding, where, and what the noise floor makes of it."""
    where = _positions(cell, "divergence")
    noise = _positions(cell, "noise_divergence")
    there = f", plain decoding {noise}" if noise else ""
    verdict = {"can't tell": "too few prompts to tell whether that is more than plain decoding does"}
    said = verdict.get(cell["noise_verdict"], f"{cell['noise_verdict']} (exact test within prompts, p = {cell['noise_p']:.2g})")
    return f"differs on {cell['divergence_rate']:.0%} of the first turns{f' {where}' if where else ''}{there}: {said}."


def _positions(cell: Mapping[str, Any], name: str) -> str:
    values = [cell[f"{name}_{quartile}"] for quartile in ("q1", "median", "q3")]
    return "" if pd.isna(values[0]) else f"(first at token {'/'.join(f'{value:.0f}' for value in values)}, quartiles)"


def mismatches(results: Results) -> list[str]:
    """Every output that differs from plain decoding's without a near tie: prompt, position, margin."""
    rows, name = results.rows, labels(results)
    wrong = rows[rows["error"].isna() & (rows["equivalence"] == "mismatch")]
    lines = []
    for row in wrong.to_dict("records"):
        margin = row["divergence_margin"]
        shown = "margin unknown" if pd.isna(margin) else f"top-2 margin there {margin:.4g}"
        position = row["first_divergence"]
        where = "at an unknown position" if pd.isna(position) else f"at token {int(position)}"
        lines.append(
            f"{row['dataset']} {row['prompt_id']} turn {row['turn'] + 1}, {name[row['cell_id']]}: "
            f"differs {where}, {shown}"
        )
    return lines


def failures(results: Results) -> list[str]:
    """Every row that failed, with its error."""
    failed, name = results.rows[results.rows["error"].notna()], labels(results)
    return [
        f"{row['dataset']} {row['prompt_id']} turn {row['turn'] + 1}, {name[row['cell_id']]}: {row['error']}"
        for row in failed.to_dict("records")
    ]


def warnings(results: Results) -> list[str]:
    """What a reader must know before trusting the numbers."""
    summary, name = results.summary, labels(results)
    found = []
    for dataset, cells in summary.groupby("dataset", sort=False):
        prompts = int(cells["prompts"].max())
        if prompts < FEW_PROMPTS:
            found.append(f"{dataset}: only {plural(prompts, 'prompt')}; small samples say little.")
    found += _busy(results) + _moved(results) + _pooled(results)
    silent = summary[
        (summary["drafted"] == 0)
        & summary["step_compression"].notna()
        & ~summary["strategy"].isin(NO_DRAFTS_EXPECTED)
    ]
    for cell in silent.to_dict("records"):
        found.append(f"{cell['dataset']}: {name[cell['cell_id']]} drafted nothing at all; it did not work as a method.")
    for cell in summary[summary["failures"] > 0].to_dict("records"):
        found.append(f"{cell['dataset']}: {name[cell['cell_id']]} had {plural(int(cell['failures']), 'failure')}.")
    return found


def _moved(results: Results) -> list[str]:
    """Whether the run was begun on one machine and completed on another."""
    record = results.provenance
    begun = [str(began) for began in results.rows["started_at"].dropna()]
    if not begun or max(begun) < str(record.get("started_at")):
        return []  # the record is of a command that found everything done
    here = provenance.machine_of(record)
    others = [
        earlier
        for earlier in record.get("earlier") or ()
        if provenance.machine_of(earlier) != here and min(begun) < str(record["started_at"])
    ]
    return ["the run was begun on another machine than it was completed on; its times are of both."] if others else []


def _pooled(results: Results) -> list[str]:
    """Which methods had earlier outputs to draft from, and what that does to their numbers."""
    summary, name = results.summary, labels(results)
    if "shared_pool" not in summary or not summary["shared_pool"].any():
        return []
    cells = summary[summary["shared_pool"]]
    found = [
        f"{cell['dataset']}: {name[cell['cell_id']]} drafts from the outputs of earlier prompts too. What it gains depends "
        "on their number and order, its prompts are not independent, and its interval is too narrow for that."
        for cell in cells.to_dict("records")
    ]
    if any(executor == "stock" for executor in cells["executor"]):
        found.append(
            "stock vLLM's pool is its process's: outputs of the warm-up and of the other data sets are in it as well."
        )
    for cell in results.provenance.get("pools_emptied") or ():
        found.append(f"{cell}: the run was interrupted, and went on with an empty pool; measure anew with run.fresh=true.")
    return found


def is_marked(cell: Cell) -> bool:
    """Whether a summary's line is of a cell that was measured on a loaded machine; a run of an earlier version doesn't say."""
    return is_loaded(cell.get("loaded_rows", float("nan")), cell["rows_measured"])


def _busy(results: Results) -> list[str]:
    """Whether something else had the machine while the run, or a cell of it, measured."""
    cores = (results.provenance.get("cpu") or {}).get("usable_cores")
    load = results.rows["load_average"].median()
    # Not the load before the run: it remembers a minute, so the run before this one as well.
    if cores and provenance.is_loaded(load, cores):
        return [f"the machine was loaded by something else (median load {load:.1f} on {plural(cores, 'core')}); times may be wrong."]
    name = labels(results)
    return [
        f"{cell['dataset']}: {name[cell['cell_id']]} was measured on a machine that was loaded by something else "
        f"({int(cell['loaded_rows'])} of {plural(int(cell['rows_measured']), 'row')}); its times may be wrong."
        for cell in results.summary.to_dict("records")
        if is_marked(cell)
    ]


def _outputs(results: Results) -> str:
    compared = results.rows[~results.rows["is_baseline"]]
    totals = dict.fromkeys(SEVERITY, 0)
    for _, rows in compared.groupby("cell_id"):
        for name, count in equivalence_counts(rows).items():
            totals[name] += count
    total = sum(totals.values())
    if total == 0:
        return "Outputs: nothing to compare."
    if totals["identical"] == total:
        return f"Outputs: all {total} equal plain decoding's, token by token."
    return f"Outputs identical to plain decoding's: {equivalence_text(totals)}."


def _speedup(cell: Cell, column: str = "speedup") -> str:
    low, high = cell[f"{column}_low"], cell[f"{column}_high"]
    if pd.isna(low):
        return f"{cell[column]:.2f}× (no interval)"
    return f"{cell[column]:.2f}× (95 % interval {low:.2f} to {high:.2f})"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """ "1 prompt", "2 prompts"."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"
