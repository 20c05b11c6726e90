"""Figures of sweeps in which more than W, N and G differ, and what becomes of figures that are no longer drawn."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lookahead_bench.report import plots
from lookahead_bench.report.plots.common import MOST_BARS
from lookahead_bench.store import Results

pytestmark = pytest.mark.unit

WINDOWS, NGRAMS = (3, 5), (2, 3)


def swept(folder: Path, concurrency=(1,), pools=(True,), windows=WINDOWS, ngrams=NGRAMS) -> Results:
    """A summary in which every combination has a speed-up of its own: 1.00, 1.01, 1.02, …"""
    combinations = itertools.product(concurrency, pools, windows, ngrams)
    lines = [
        {
            "cell_id": f"c{number}", "dataset": "humaneval", "label": f"lookahead W{window} N{ngram} G5", "strategy": "lookahead",
            "parameters": json.dumps({"window": window, "ngram": ngram, "branches": 5, "pool_from_prompt": pool}), "window": window,
            "ngram": ngram, "branches": 5, "executor": "tree", "concurrency": at_once, "is_baseline": False, "shared_pool": False,
            "speedup": 1 + number / 100, "speedup_low": 0.9, "speedup_high": 2.0, "tokens_per_second": 40.0, "prompts": 6,
            "verdict": "can't tell" if number % 2 else "faster", "step_compression": 1.5, "step_cost": 1.2, "nodes_per_step": 9.0,
            "drafted": 9,
        }
        for number, (at_once, pool, window, ngram) in enumerate(combinations)
    ]  # fmt: skip
    summary = pd.DataFrame(lines).astype(dict.fromkeys(("window", "ngram", "branches"), "Int64"))
    rows = pd.DataFrame({"model": ["m"], "dtype": ["float32"], "strategy": ["lookahead"], "error": [None]})
    return Results(rows, pd.DataFrame(), summary, {}, {}, folder)


def test_other_requests_at_once_and_other_parameters_are_other_lines(tmp_path):
    results = swept(tmp_path, concurrency=(1, 4), pools=(True, False), windows=(5,))
    data = plots.speedup_over(results, "ngram").data
    assert data.groupby("series")["speedup"].agg(list).to_dict() == {
        "lookahead, 1 at once pool_from_prompt=True (W=5, G=5)": [1.00, 1.01],
        "lookahead, 1 at once pool_from_prompt=False (W=5, G=5)": [1.02, 1.03],
        "lookahead, 4 at once pool_from_prompt=True (W=5, G=5)": [1.04, 1.05],
        "lookahead, 4 at once pool_from_prompt=False (W=5, G=5)": [1.06, 1.07],
    }


def test_a_heat_map_is_of_one_method_and_marks_what_cannot_be_told(tmp_path):
    drawing = plots.speedup_grid(swept(tmp_path, pools=(True, False)), ["ngram", "window"])
    panels = [panel for panel in drawing.figure.axes if panel.get_title()]
    titles = [panel.get_title() for panel in panels]
    assert titles == [f"humaneval, lookahead pool_from_prompt={pool}" for pool in (True, False)]
    shown = [[text.get_text() for text in panel.texts] for panel in panels]
    assert shown == [["1.00", "1.01?", "1.02", "1.03?"], ["1.04", "1.05?", "1.06", "1.07?"]]
    np.testing.assert_allclose(drawing.data["speedup"], 1 + np.arange(8) / 100)


def test_a_figure_of_some_cells_says_so(tmp_path):
    results = swept(tmp_path, windows=range(2, 2 + MOST_BARS))
    drawing = plots.speedup_by_method(results)
    assert f"the fastest {MOST_BARS} of {2 * MOST_BARS} cells" in drawing.figure.get_suptitle()
    assert len(drawing.data) == 2 * MOST_BARS
    assert "cells" not in plots.speedup_by_method(swept(tmp_path)).figure.get_suptitle()


def test_what_is_no_longer_drawn_is_removed_and_nothing_else(tmp_path):
    folder = tmp_path / "plots"
    folder.mkdir()
    for name in ("step_timeline.png", "step_timeline.svg", "step_timeline.csv", "of_my_own.png"):
        (folder / name).write_text("")
    plots.draw_all(swept(tmp_path))
    left = {path.stem for path in folder.iterdir()}
    assert left == {"speedup_by_method", "speedup_grid", "of_my_own"}


def test_each_figure_has_a_caption_of_its_own():
    names = ("step_time", "step_timeline", "cost", "compression_scaling", "speedup_over_ngram", "speedup_by_method")
    assert len({plots.caption(name) for name in names}) == len(names) and plots.caption("step_timeline").startswith("One prompt")
    assert plots.caption("of_my_own") == "" and plots.place("of_my_own") > plots.place("step_timeline")
