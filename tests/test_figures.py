"""What the figures about steps show: scaling, costs, times, one prompt's timeline, several requests at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lookahead_bench.report import plots
from lookahead_bench.report.pieces import NEWLINE, laid_out, pieces
from lookahead_bench.report.plots.step_cost import step_costs
from tests.example_results import METHODS, PLAIN_STEP_SECONDS, STEP_COST, store_run

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return store_run(tmp_path_factory.mktemp("steps"), prompts=5)


def test_scaling_shows_s_over_the_logarithm_and_fits_a_line(results):
    drawing = plots.compression_scaling(results)
    data = drawing.data[drawing.data["dataset"] == "humaneval"]
    cells = results.summary[(results.summary["dataset"] == "humaneval") & results.summary["ngram"].notna()]
    np.testing.assert_allclose(data["log2_nodes"], np.log2(cells["nodes_per_step"]))
    np.testing.assert_allclose(data["step_compression"], cells["step_compression"])
    slope, intercept = np.polyfit(np.log2(cells["nodes_per_step"]), cells["step_compression"], 1)
    np.testing.assert_allclose(data[["slope", "intercept"]], [[slope, intercept]] * len(data))
    panel = drawing.figure.axes[0]
    points = next(line for line in panel.lines if line.get_label() == "lookahead")
    np.testing.assert_allclose(points.get_xdata(), cells["nodes_per_step"])
    assert panel.get_xscale() == "log" and f"{slope:+.2f} per doubling" in [text.get_text() for text in panel.texts]


def test_two_cells_have_no_line(tmp_path):
    data = plots.compression_scaling(store_run(tmp_path, METHODS[:5], prompts=2)).data
    assert data["slope"].isna().all()


def test_step_costs_are_medians_against_the_plain_step(results):
    costs = step_costs(results).set_index(["dataset", "executor", "tokens"])
    assert set(costs.index.get_level_values("executor")) == {"tree"}
    assert costs.loc[("humaneval", "tree", 1), "cost"] == pytest.approx(STEP_COST["autoregressive"], rel=0.01)
    assert costs.loc[("humaneval", "tree", 31), "cost"] == pytest.approx(1.05 + 0.004 * 30, rel=0.01)
    assert costs.loc[("humaneval", "tree", 31), "seconds"] == pytest.approx(PLAIN_STEP_SECONDS * 1.17, rel=0.01)
    drawing = plots.step_cost_by_tokens(results)
    (bars,) = drawing.figure.axes[0].containers
    np.testing.assert_allclose(np.asarray(bars[0].get_ydata(), float), costs.loc["humaneval"]["cost"].to_numpy())


def test_steps_of_several_requests_at_once_are_no_cost_of_one(results):
    assert step_costs(replace(results, summary=results.summary.assign(concurrency=4))).empty


def test_prediction_uses_the_curve_of_all_methods(results):
    data = plots.predicted_speedup(results).data
    costs = step_costs(results).set_index(["dataset", "tokens"])["cost"]
    cell = data[(data["dataset"] == "mt_bench") & data["name"].str.contains("N4")].iloc[0]
    assert cell["predicted"] == pytest.approx(cell["step_compression"] / costs[("mt_bench", 31)])
    assert cell["predicted"] == pytest.approx(cell["speedup"], rel=0.03)


def test_parts_of_a_step_make_up_the_whole(results):
    data = plots.step_time(results).data
    parts = data[data["name"] == "lookahead W5 N3 G5"].groupby("dataset")
    seconds = results.steps.merge(results.summary[["cell_id", "label"]], on="cell_id")
    for dataset, part in parts:
        mean = seconds[(seconds["dataset"] == dataset) & (seconds["label"] == "lookahead W5 N3 G5")]["seconds"].mean()
        assert part["milliseconds"].sum() == pytest.approx(1000 * mean)
        assert part.set_index("part")["share"]["forward"] == pytest.approx(0.9)
    assert set(data.loc[data["name"] == "vllm", "part"]) == {"not split (stock)"}


def test_parts_that_are_more_than_the_whole_are_shown_as_such(results):
    steps = results.steps.assign(forward_seconds=1.5 * results.steps["seconds"])
    drawing = plots.step_time(replace(results, steps=steps))
    cell = drawing.data[(drawing.data["name"] == "autoregressive") & (drawing.data["dataset"] == "humaneval")]
    assert cell.set_index("part")["milliseconds"]["rest"] < 0 and cell["share"].sum() == pytest.approx(1)
    assert drawing.figure.axes[0].get_xlim()[0] < 0


def test_timeline_gives_each_token_the_step_that_brought_it(results):
    drawing = plots.step_timeline(results)
    data = drawing.data
    name = drawing.figure.get_suptitle().split(" on ")[0]
    best = results.summary.loc[results.summary[results.summary["drafted"] > 0]["speedup"].idxmax()]
    assert name == best["label"]
    prompt = drawing.figure.get_suptitle().split(" on ")[1].split(":")[0].split()[1]
    steps = results.steps[(results.steps["cell_id"] == best["cell_id"]) & (results.steps["prompt_id"] == prompt)]
    assert data["step"].iloc[0] == 0 and data["step"].max() == len(steps)
    np.testing.assert_array_equal(data.groupby("step").size()[1:], steps["accepted"])
    assert data["seconds"].iloc[-1] == pytest.approx(steps["seconds"].sum())
    rows = results.rows[results.rows["cell_id"] == best["cell_id"]]
    assert rows["decode_steps"].median() == rows.set_index("prompt_id")["decode_steps"][prompt]
    assert data["piece"].tolist()[:3] == ["[0]", "[1]", "[2]"]  # no tokenizer at hand


def test_speed_against_requests_at_once(results):
    several = [
        results.summary.assign(concurrency=count, cell_id=results.summary["cell_id"] + f"-{count}", throughput=30.0 * count)
        for count in (1, 4)
    ]
    data = plots.throughput_over_concurrency(replace(results, summary=pd.concat(several))).data
    line = data[(data["dataset"] == "humaneval") & (data["name"] == "vllm")]
    assert line["concurrency"].tolist() == [1, 4] and line["throughput"].tolist() == [30.0, 120.0]
    assert plots.throughput_over_concurrency(results) is None


def test_text_is_laid_out_within_its_width():
    placed = laid_out(["abc", " def", "\n", "x" * 12, "\n\n", "end"], 10, 99)
    assert [(where.token, where.text, where.line, where.column) for where in placed] == [
        (0, "abc", 0, 0),
        (1, " def", 0, 3),
        (2, NEWLINE, 0, 7),
        (3, "x" * 10, 1, 0),
        (3, "xx", 2, 0),
        (4, NEWLINE, 2, 2),
        (4, NEWLINE, 3, 0),
        (5, "end", 4, 0),
    ]
    assert max(where.line for where in laid_out(["word "] * 99, 10, 3)) == 2


@pytest.mark.model
def test_pieces_of_a_text_are_the_text(tokenizer, model_path):
    text = "naïve – 東京 🙂\n\tif x:  # done"
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(token_ids, model_path)
    assert len(parts) == len(token_ids) and "".join(parts) == text
