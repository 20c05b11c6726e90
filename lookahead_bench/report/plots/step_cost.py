"""What a step of T tokens costs, from the run's own steps, and the speed-up that this predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lookahead_bench.report import style
from lookahead_bench.report.plots.common import alone, dataset_names, drafting, finish, labelled, looks, method, size
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results

FEWEST_STEPS = 10
"""Steps of T tokens that a median is taken of, at least."""


def step_cost_by_tokens(results: Results) -> Drawing | None:
    """The curve c(T) of each executor on each data set: median seconds of its steps of T tokens, of all methods together.

    Relative to the baseline's median step. Only steps of requests that were decoded alone. None
    if no executor has two T with FEWEST_STEPS steps.
    """
    data = step_costs(results)
    data = data[data.groupby(["dataset", "executor"])["tokens"].transform("size") > 1]
    if data.empty:
        return None
    datasets, styles = dataset_names(data), dict(zip(sorted(data["executor"].unique()), style.looks(), strict=False))
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), 4.4))
    for panel, dataset in zip(axes, datasets, strict=True):
        panel.axhline(1.0, color=style.REFERENCE, linewidth=1.2, label="plain step of stock vLLM")
        for executor, curve in data[data["dataset"] == dataset].groupby("executor"):
            reach = [curve["cost"] - curve["cost_q25"], curve["cost_q75"] - curve["cost"]]
            panel.errorbar(
                curve["tokens"], curve["cost"], yerr=reach, label=executor, capsize=2, elinewidth=0.9, **styles[executor]
            )
        panel.set_ylim(bottom=0)
        panel.set_xlim(left=0)
        panel.set_xlabel("T (tokens in flight)")
        panel.set_ylabel("c(T) (seconds of a step, × plain)")
        panel.set_title(dataset)
    finish(figure, axes, results, "Cost of a step by its tokens")
    return Drawing(figure, data)


def predicted_speedup(results: Results) -> Drawing | None:
    """Measured speed-up against S over the mean of c(T) over the method's steps.

    c(T) is the curve of `step_cost_by_tokens`, of all methods together, so the prediction knows
    nothing of the method's own seconds. None without such a curve.
    """
    data = _predictions(results)
    if data.empty:
        return None
    datasets, styles = dataset_names(data), looks(data)
    figure, (axes,) = style.panels(1, len(datasets), *size(len(datasets), 4.9))
    low = 0.95 * min(data["predicted"].min(), data["speedup_low"].min(), 1.0)
    high = 1.05 * max(data["predicted"].max(), data["speedup_high"].max())
    for panel, dataset in zip(axes, datasets, strict=True):
        panel.plot([low, high], [low, high], color=style.REFERENCE, linewidth=1.2, label="as predicted")
        points = data[data["dataset"] == dataset]
        for (strategy, executor), cells in points.groupby(["strategy", "executor"]):
            name = method(strategy, executor)
            reach = np.abs(cells[["speedup_low", "speedup_high"]].to_numpy(float) - cells[["speedup"]].to_numpy(float)).T
            panel.errorbar(
                cells["predicted"], cells["speedup"], yerr=reach, label=name, linestyle="none", capsize=3, elinewidth=1.2,
                **styles[name],
            )  # fmt: skip
        panel.set_xlim(low, high)
        panel.set_ylim(low, high)
        panel.set_xlabel("predicted: S / c(T)")
        panel.set_ylabel("measured speed-up (×)")
        panel.set_title(dataset)
    finish(figure, axes, results, "Predicted against measured speed-up")
    return Drawing(figure, data)


def step_costs(results: Results) -> pd.DataFrame:
    """Median and quartiles of the plug-in's steps, by data set, executor and tokens in flight.

    Columns: dataset, executor, tokens, steps, seconds, cost, cost_q25, cost_q75 (relative to the
    baseline's median step). Empty where there is no baseline.
    """
    cells = results.summary[["cell_id", "executor", "is_baseline"]]
    steps = alone(results).merge(cells, on="cell_id")
    plain = steps[steps["is_baseline"]].groupby("dataset")["seconds"].median()
    own = steps[(steps["executor"] != "stock") & steps["dataset"].isin(plain.index)]
    lines = []
    for (dataset, executor, tokens), group in own.groupby(["dataset", "executor", "in_flight"]):
        if len(group) < FEWEST_STEPS:
            continue
        q25, median, q75 = group["seconds"].quantile([0.25, 0.5, 0.75]) / plain[dataset]
        lines.append((dataset, executor, tokens, len(group), median * plain[dataset], median, q25, q75))
    columns = ["dataset", "executor", "tokens", "steps", "seconds", "cost", "cost_q25", "cost_q75"]
    return pd.DataFrame(lines, columns=columns)


def _predictions(results: Results) -> pd.DataFrame:
    """A line per drafting cell of the plug-in whose steps lie on its executor's curve."""
    columns = ["dataset", "name", "strategy", "executor", "step_compression", "mean_cost", "predicted",
               "speedup", "speedup_low", "speedup_high"]  # fmt: skip
    costs, steps = step_costs(results), alone(results)
    curves = {key: curve for key, curve in costs.groupby(["dataset", "executor"]) if len(curve) > 1}
    lines = []
    for cell in labelled(drafting(results.summary).dropna(subset="speedup")).to_dict("records"):
        curve = curves.get((cell["dataset"], cell["executor"]))
        tokens = steps.loc[steps["cell_id"] == cell["cell_id"], "in_flight"]
        if curve is None or tokens.empty:
            continue
        # Between two measured T the curve is taken as straight, beyond its ends as level.
        cell["mean_cost"] = float(np.interp(tokens, curve["tokens"], curve["cost"]).mean())
        cell["predicted"] = cell["step_compression"] / cell["mean_cost"]
        lines.append([cell[column] for column in columns])
    return pd.DataFrame(lines, columns=columns)
