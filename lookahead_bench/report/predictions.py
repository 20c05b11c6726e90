"""What the stored cost curve foretells, against what was measured; in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookahead_bench.report.words import labels, plural
from lookahead_bench.stats import NO_DRAFTS_EXPECTED

if TYPE_CHECKING:
    from lookahead_bench.store import Results


def predictions(results: Results) -> list[str]:
    """Per data set how far the speed-ups are from S over the c(T) that was measured on its own; and where that is from."""
    summary, name = results.summary, labels(results)
    if "predicted_speedup" not in summary:
        return []
    drafting = summary[~summary["strategy"].isin(NO_DRAFTS_EXPECTED)].dropna(subset=["speedup", "predicted_speedup"])
    sentences = []
    for dataset, cells in drafting.groupby("dataset", sort=False):
        best = cells.loc[cells["speedup"].idxmax()]
        said = f"{name[best['cell_id']]} {best['predicted_speedup']:.2f}×, measured {best['speedup']:.2f}×"
        if len(cells) > 1:
            ratios = cells["speedup"] / cells["predicted_speedup"]
            said += f"; measured over predicted, {plural(len(cells), 'method')}: {ratios.min():.2f} to {ratios.max():.2f}"
        sentences.append(f"{dataset}: S over the stored c(T) predicts {said}.")
    if not sentences:
        return []
    runs = sorted({str(found.get("run")) for found in results.provenance.get("step_costs") or ()})
    return [*sentences, f"That c(T) was measured on its own, by {', '.join(runs)}: the prediction knows nothing of this run's seconds."]
