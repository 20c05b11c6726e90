"""One prompt, step by step: when each step ran and which tokens it brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lookahead_bench.report import style
from lookahead_bench.report.pieces import Placed, laid_out, pieces
from lookahead_bench.report.plots.common import alone, drafting, labelled, titled
from lookahead_bench.report.plots.drawing import Drawing

if TYPE_CHECKING:
    from lookahead_bench.store import Results

WIDTH_INCHES, MARGIN_INCHES = 9.5, 0.3
CHARACTERS = 84
LINES = 24
"""Lines of text that are shown, at most."""
# A character of DejaVu Sans Mono is 0.602 of its size wide.
_CELL_INCHES = (WIDTH_INCHES - 2 * MARGIN_INCHES) / CHARACTERS
_FONT_POINTS = 72 * _CELL_INCHES / 0.602
_LINE_INCHES = 2.1 * _CELL_INCHES


def step_timeline(results: Results) -> Drawing | None:
    """The steps of the fastest drafting method on the prompt that is the median of its prompts by S.

    Above: its steps and, where there is one, plain decoding's, in time. Below: the output, a token
    in the colour of the step that brought it; a step that brought several has one frame around them.
    None if no method drafted.
    """
    row = _choice(results)
    if row is None:
        return None
    name = labelled(results.summary).set_index("cell_id").loc[row["cell_id"], "name"]
    data = _data(results, row)
    placed = laid_out(data["piece"].tolist(), CHARACTERS, LINES)
    lines = 1 + max(where.line for where in placed)
    height = 2.1 + lines * _LINE_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=style.DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    strip = figure.add_axes((0.12, 1 - 1.25 / height, 0.85, 0.75 / height))
    _draw_strips(strip, results, row, data)
    side = MARGIN_INCHES / WIDTH_INCHES
    text = figure.add_axes((side, 0.15 / height, 1 - 2 * side, lines * _LINE_INCHES / height))
    _draw_text(text, data, placed, lines)
    figure.suptitle(
        titled(results, f"{name} on {row['dataset']} {row['prompt_id']}"), x=side, ha="left", y=1 - 0.12 / height, va="top"
    )
    return Drawing(figure, data)


def _choice(results: Results) -> pd.Series | None:
    """The row that is shown."""
    steps = alone(results)
    cells = drafting(results.summary).dropna(subset="speedup").sort_values("speedup", ascending=False)
    for cell_id in cells["cell_id"]:
        rows = results.rows[(results.rows["cell_id"] == cell_id) & results.rows["error"].isna()]
        rows = rows[(rows["repeat"] == 0) & (rows["decode_steps"] > 0)]
        if rows.empty or not (steps["cell_id"] == cell_id).any():
            continue
        compression = (rows["new_tokens"] - 1) / rows["decode_steps"]
        return rows.loc[compression.astype(float).sort_values(kind="stable").index[(len(rows) - 1) // 2]]
    return None


def _data(results: Results, row: pd.Series) -> pd.DataFrame:
    """A line per output token: token, step (0: the prefill), token_id, piece, seconds (end of its step after the prefill)."""
    steps = _steps_of(results, row)
    token_ids = [int(token) for token in row["token_ids"]]
    bringing = np.concatenate([[0], np.repeat(np.arange(1, len(steps) + 1), steps["accepted"])])[: len(token_ids)]
    ends = np.concatenate([[0.0], steps["seconds"].cumsum()])
    return pd.DataFrame(
        {
            "token": range(len(bringing)),
            "step": bringing,
            "token_id": token_ids[: len(bringing)],
            "piece": pieces(token_ids[: len(bringing)], (results.provenance.get("model") or {}).get("path")),
            "seconds": ends[bringing],
        }
    )


def _steps_of(results: Results, row: pd.Series) -> pd.DataFrame:
    same = results.steps[["cell_id", "prompt_id", "turn", "repeat"]] == row[["cell_id", "prompt_id", "turn", "repeat"]]
    return results.steps[same.all(axis=1)].sort_values("step")


def _draw_strips(panel: Axes, results: Results, row: pd.Series, data: pd.DataFrame) -> None:
    baselines = results.rows[results.rows["is_baseline"] & (results.rows["dataset"] == row["dataset"])]
    same = (baselines[["prompt_id", "turn", "repeat", "concurrency"]] == row[["prompt_id", "turn", "repeat", "concurrency"]])
    plain = baselines[same.all(axis=1)]
    shown = [("method", row)] + [("plain", line) for _, line in plain.head(1).iterrows()]
    for height, (kind, line) in enumerate(reversed(shown)):
        seconds = _steps_of(results, line)["seconds"].to_numpy()
        begun = np.concatenate([[0.0], seconds.cumsum()])[:-1]
        colours = [_tint(step) for step in range(1, len(seconds) + 1)] if kind == "method" else ["white", "#DDDDDD"] * len(seconds)
        panel.broken_barh(
            list(zip(begun, seconds)), (height - 0.36, 0.72), facecolors=colours[: len(seconds)], edgecolor="#333333",
            linewidth=0.4,
        )  # fmt: skip
        panel.annotate(
            f"{len(seconds)} steps", (seconds.sum(), height), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    panel.set_yticks(range(len(shown)), [kind for kind, _ in reversed(shown)])
    panel.set_xlim(0, 1.1 * panel.get_xlim()[1])
    panel.grid(False)
    panel.set_xlabel("decode seconds, after the first token")


def _draw_text(panel: Axes, data: pd.DataFrame, placed: list[Placed], lines: int) -> None:
    panel.set_xlim(0, CHARACTERS)
    panel.set_ylim(lines, 0)
    panel.set_axis_off()
    steps = data["step"].tolist()
    for where in placed:
        first = where.begins and (where.token == 0 or steps[where.token - 1] != steps[where.token])
        panel.add_patch(
            Rectangle((where.column, where.line + 0.08), where.width, 0.84, facecolor=_tint(steps[where.token]), linewidth=0)
        )
        if first:
            # Where a step begins, told without colour.
            panel.plot([where.column] * 2, [where.line + 0.04, where.line + 0.96], color="black", linewidth=1.1)
        panel.text(
            where.column, where.line + 0.52, where.text, family="DejaVu Sans Mono", fontsize=_FONT_POINTS, va="center",
            parse_math=False,
        )  # fmt: skip
    shown = len({where.token for where in placed})
    if shown < len(data):
        panel.text(0, lines + 0.1, f"… {len(data) - shown} more tokens", fontsize=9, va="top", clip_on=False)


def _tint(step: int) -> str:
    """A step's colour, light enough for black text; grey for the prefill's token."""
    return "#E0E0E0" if step == 0 else style.TINTS[(step - 1) % len(style.TINTS)]
