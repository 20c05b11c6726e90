"""The figures of a sweep, each as PNG, SVG and the CSV of its data, with fixed names.

| file | shown when |
|---|---|
| speedup_by_method | always |
| speedup_over_{ngram,window,branches} | that parameter alone is swept |
| step_compression_over_{ngram,window,branches} | that parameter alone is swept |
| speedup_grid | two or three parameters are swept together |
| compression_scaling | a method drafted, one request at a time or not |
| predicted_speedup, step_cost_by_tokens | the plug-in measured plain steps and drafted ones |
| cost | the run is a cost sweep |
| acceptance_histogram | there are decoding steps |
| step_time | there are decoding steps |
| throughput_over_concurrency | several numbers of requests at once |
| step_timeline | a method drafted one request at a time |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lookahead_bench.report import style
from lookahead_bench.report.plots.acceptance import acceptance_histogram
from lookahead_bench.report.plots.cost import draw_cost
from lookahead_bench.report.plots.drawing import Drawing
from lookahead_bench.report.plots.grid import speedup_grid
from lookahead_bench.report.plots.load import throughput_over_concurrency
from lookahead_bench.report.plots.methods import speedup_by_method
from lookahead_bench.report.plots.scaling import compression_scaling
from lookahead_bench.report.plots.step_cost import predicted_speedup, step_cost_by_tokens
from lookahead_bench.report.plots.step_time import step_time
from lookahead_bench.report.plots.sweeps import speedup_over, step_compression_over, swept_parameters
from lookahead_bench.report.plots.timeline import step_timeline

if TYPE_CHECKING:
    from lookahead_bench.store import Results

__all__ = [
    "Drawing", "acceptance_histogram", "compression_scaling", "draw_all", "draw_cost", "drawings", "predicted_speedup", "speedup_by_method",
    "speedup_grid", "speedup_over", "step_compression_over", "step_cost_by_tokens", "step_time", "step_timeline",
    "swept_parameters", "throughput_over_concurrency",
]  # fmt: skip

CAPTIONS = {
    "speedup_by_method": "Speed-up over plain decoding on the same prompts, with 95 % intervals. Hollow: can't be told from 1.",
    "speedup_over": "Speed-up against the swept parameter, with 95 % intervals. Grey band: plain decoding against itself.",
    "step_compression_over": "Why: tokens per step (S) above, cost of a step (c) below. The speed-up is S / c.",
    "speedup_grid": "Speed-up for every combination; 1 is plain decoding, a question mark: can't be told from it.",
    "compression_scaling": "Tokens per step against tokens in flight, on a logarithmic axis. The paper (arXiv 2402.02057) "
    "expects S to grow linearly with the logarithm; the dashed lines are fits to a method's cells.",
    "predicted_speedup": "Measured speed-up against S / c(T), with c(T) taken from the figure of step costs: what a method loses "
    "below the diagonal is its own cost, such as drafting.",
    "step_cost_by_tokens": "Median seconds of a step against the tokens that it computes, relative to a plain step of stock vLLM. "
    "Bars: quartiles.",
    "cost": "The cost c(T) of a step with T tokens in flight.",
    "acceptance_histogram": "How many tokens the steps of each method brought.",
    "step_time": "Mean time of a step and where it went.",
    "throughput_over_concurrency": "Tokens per second against the number of requests that are decoded at once.",
    "step_timeline": "One prompt, step by step: its place in time above, its tokens below. One colour and one frame per step.",
}
"""What a figure shows, by the name of its file or what that begins with; in the order of the report."""


def caption(name: str) -> str:
    """The caption of a figure file; "" if it is none of these."""
    return CAPTIONS.get(_kind(name), "")


def place(name: str) -> int:
    """Where a figure stands in the report."""
    return list(CAPTIONS).index(_kind(name)) if _kind(name) else len(CAPTIONS)


def _kind(name: str) -> str:
    """The longest beginning of a file's name that has a caption: ``step_timeline`` is no ``step_time``."""
    return max((known for known in CAPTIONS if name.startswith(known)), key=len, default="")


def draw_all(results: Results) -> list[Path]:
    """Draw what the sweep has to show into ``results.folder/plots``; returns the PNG files.

    Figures there that it no longer has to show are removed: a page would show old numbers beside new ones.
    """
    if results.summary.empty:
        return []
    folder = Path(results.folder) / "plots"
    folder.mkdir(exist_ok=True)
    drawn = drawings(results)
    for old in folder.glob("*.png"):
        if _kind(old.stem) and old.stem not in drawn:
            for ending in (".png", ".svg", ".csv"):
                old.with_suffix(ending).unlink(missing_ok=True)
    return [drawing.save(folder, name) for name, drawing in drawn.items()]


def drawings(results: Results) -> dict[str, Drawing]:
    """What the sweep has to show, by name, in the order of the report."""
    with style.applied():
        drawn = {name: drawing for name, drawing in _drawings(results) if drawing is not None}
    return dict(sorted(drawn.items(), key=lambda item: place(item[0])))


def _drawings(results: Results) -> Iterator[tuple[str, Drawing | None]]:
    yield "speedup_by_method", speedup_by_method(results)
    swept = swept_parameters(results.summary)
    if len(swept) == 1:
        (parameter,) = swept
        yield f"speedup_over_{parameter}", speedup_over(results, parameter)
        yield f"step_compression_over_{parameter}", step_compression_over(results, parameter)
    elif swept and results.summary[["speedup", *swept]].notna().all(axis=1).any():
        yield "speedup_grid", speedup_grid(results, swept)
    yield "throughput_over_concurrency", throughput_over_concurrency(results)
    if results.steps.empty:
        return
    yield "cost", draw_cost(results)
    yield "compression_scaling", compression_scaling(results)
    yield "predicted_speedup", predicted_speedup(results)
    yield "step_cost_by_tokens", step_cost_by_tokens(results)
    yield "acceptance_histogram", acceptance_histogram(results)
    yield "step_time", step_time(results)
    yield "step_timeline", step_timeline(results)
