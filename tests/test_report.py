"""Table, words, figures and page of stored runs."""

from __future__ import annotations

import html.parser
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from rich.console import Console

from lookahead_bench.errors import InputError
from lookahead_bench.report import plots, table, words
from lookahead_bench.report.__main__ import main
from lookahead_bench.report.html import render, write_html
from lookahead_bench.report.predictions import predictions
from lookahead_bench.report.runs import find_runs
from tests import example_results
from tests.example_results import BASELINES, METHODS, store_run

pytestmark = pytest.mark.unit

HOSTILE = "RuntimeError: <script>alert(1)</script> [/red] [bold]"


def spoil(row: dict) -> dict:
    """A failure, a mismatch, a near tie, and a method that never drafts."""
    if row["dataset"] == "humaneval" and row["ngram"] == 4 and row["prompt_id"] == "HumanEval/3":
        nothing = dict.fromkeys(("new_tokens", "decode_steps", "decode_seconds", "drafted_tokens"))
        return {**row, **nothing, "error": HOSTILE, "equivalence": "", "token_ids": []}
    if row["ngram"] == 3 and row["prompt_id"] == "81":
        return {**row, "equivalence": "mismatch", "first_divergence": 7, "divergence_margin": 0.25}
    if row["ngram"] == 3 and row["prompt_id"] == "82":
        return {**row, "equivalence": "near_tie", "first_divergence": 9, "divergence_margin": 1e-6}
    if row["ngram"] == 2:
        return {**row, "drafted_tokens": 0}
    return row


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return store_run(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    return store_run(tmp_path_factory.mktemp("bad"), change=spoil)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    sizes = [(window, ngram, branches) for window in (3, 5) for ngram in (2, 3, 4) for branches in (3, 5)]
    methods = (*BASELINES, *(("lookahead", size) for size in sizes))
    return store_run(tmp_path_factory.mktemp("grid"), methods, prompts=5, sweep="grid")


ALWAYS = {"speedup_by_method", "acceptance_histogram", "compression_scaling", "step_time", "step_timeline"}
CURVES = {"step_cost_by_tokens", "predicted_speedup"}


def drawn(drawing):
    """A drawing's figure and data."""
    return drawing.figure, drawing.data


def printed(results, **console) -> str:
    stream = io.StringIO()
    table.print_table(results, Console(file=stream, **console))
    return stream.getvalue()


def test_table_fits_a_pipe_without_colour(good, bad, grid):
    for results in (good, bad, grid):
        text = printed(results)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 100


def test_what_the_kernels_bring_is_told_from_what_the_methods_bring(good):
    assert words.kernels(good) == []
    for native, count in ((False, 0), (True, 2)):
        engines = [{"executor": "none", "native_kernels": False}, {"executor": "tree", "native_kernels": native}]
        told = words.kernels(replace(good, provenance={"plan": {"engines": engines}}))
        assert len(told) == count
        assert all("autoregressive, which drafts nothing, has 0.9" in sentence for sentence in told)
    without = good.summary[good.summary["strategy"] != "autoregressive"]
    (sentence,) = words.kernels(replace(good, provenance={"plan": {"engines": engines}}, summary=without))
    assert "only with autoregressive in the run" in sentence


def test_table_has_colour_on_a_terminal(good):
    assert "\x1b" in printed(good, force_terminal=True, width=100)


def test_table_rows(good):
    lines = printed(good).splitlines()
    titles = [place for place, line in enumerate(lines) if line.startswith(("humaneval: 12", "mt_bench: 12"))]
    assert len(titles) == 2 and "12 prompts, 12 turns, smollm2-135m, float32" in lines[titles[0]]
    methods = [line.split("  ")[0].strip() for line in lines[titles[0] + 3 : titles[0] + 3 + len(METHODS)]]
    assert methods[:3] == ["vllm", "vllm_control", "autoregressive"]
    assert methods[3:] == [f"lookahead W5 N{ngram} G5" for ngram in example_results.NGRAMS]
    cell = good.summary.set_index(["dataset", "ngram"]).loc[("humaneval", 5)]
    line = next(line for line in lines[titles[0] :] if line.startswith("lookahead W5 N5 G5"))
    interval = f"{cell['speedup']:.2f} [{cell['speedup_low']:.2f}, {cell['speedup_high']:.2f}]"
    assert interval in line and f"{cell['tokens_per_second']:.1f}" in line and "12/12" in line
    assert f"{cell['step_compression']:.2f}" in line and f"{cell['step_cost']:.2f}" in line


def test_table_says_what_is_wrong(bad):
    text = " ".join(printed(bad).split())
    assert "10/12, 1 near tie, 1 mismatch" in text
    assert "mt_bench 81 turn 1, lookahead W5 N3 G5: differs at token 7, top-2 margin there 0.25" in text
    assert f"humaneval HumanEval/3 turn 1, lookahead W5 N4 G5: {HOSTILE}" in text
    assert "11/11, 1 failed" in text and "lookahead W5 N4 G5 had 1 failure" in text
    assert "lookahead W5 N2 G5 drafted nothing at all" in text
    assert "identical to plain decoding's: 165/167, 1 near tie, 1 mismatch" in text


def test_a_baseline_that_failed_throughout_has_no_speedup(tmp_path):
    nothing = dict.fromkeys(("new_tokens", "decode_steps", "decode_seconds"))
    failed = store_run(tmp_path, BASELINES, 2, change=lambda row: {**row, **nothing, "error": "refused"})
    (line, _) = [line for line in printed(failed).splitlines() if line.startswith("vllm ")]
    assert line.split()[:4] == ["vllm", "–", "–", "baseline"]


def test_names_are_no_markup(good):
    rows = good.rows.assign(model="/models/[red]x")
    summary = good.summary.assign(label="[bold]method")
    text = printed(replace(good, rows=rows, summary=summary))
    assert "/models/[red]x" in text and "[bold]method" in text


def test_a_run_that_goes_on_has_a_table(good):
    rows = good.rows.assign(equivalence="")
    assert "0/12, 12 unchecked" in printed(replace(good, rows=rows))


def test_long_lists_are_cut_in_the_table(good):
    wrong = good.rows.assign(equivalence="mismatch")
    lines = printed(replace(good, rows=wrong)).splitlines()
    listed = [line for line in lines if "differs at an unknown position" in line]
    assert len(listed) == table.MOST_LINES
    assert f"and {len(wrong) - table.MOST_LINES} more" in "\n".join(lines)


def test_words_of_a_good_run(good):
    speed, _, outputs = words.verdicts(good)
    assert re.match(r"humaneval: lookahead W5 N\d G5 is the fastest, 1\.\d\d× \(95 % interval", speed)
    compared = (len(METHODS) - 1) * 2 * example_results.PROMPTS
    assert outputs == f"Outputs: all {compared} equal plain decoding's, token by token."
    assert all("contains 1.0, as it should" in sentence for sentence in words.control(good))
    assert "differs from itself on 0% of the prompts: the noise floor" in words.noise_floor(good)[0]
    assert words.warnings(good) == words.mismatches(good) == words.failures(good) == []


def test_the_noise_floor_is_a_share_of_passes(good):
    summary = good.summary.assign(noise_floor=0.25, noise_passes=32)
    assert words.noise_floor(replace(good, summary=summary))[0].startswith(
        "humaneval: plain decoding differs from itself in 25% of 32 passes: the noise floor."
    )


def test_a_prediction_is_said_with_where_it_is_from(good):
    assert predictions(good) == []
    summary = good.summary.assign(predicted_speedup=0.8 * good.summary["speedup"])
    told = predictions(replace(good, summary=summary, provenance={"step_costs": [{"run": "the-cost-run"}]}))
    assert re.match(r"humaneval: S over the stored c\(T\) predicts lookahead W5 N\d G5 1\.\d\d×, measured 1\.\d\d×; "
                    r"measured over predicted, 5 methods: 1\.25 to 1\.25\.", told[0])  # fmt: skip
    assert len(told) == 3 and "measured on its own, by the-cost-run" in told[2]


def test_biased_control_is_said(good):
    summary = good.summary.copy()
    controls = summary["strategy"] == "vllm_control"
    summary.loc[controls, ["speedup", "speedup_low", "speedup_high"]] = [1.1, 1.05, 1.15]
    sentence = words.control(replace(good, summary=summary))[0]
    assert "[1.050, 1.150] does not contain 1.0: differences of this size mean nothing here" in sentence


def test_no_method_faster_is_said(tmp_path):
    results = store_run(tmp_path, (*BASELINES, ("vllm_ngram", None)))
    assert words.verdicts(results)[0].startswith(
        "humaneval: no method is certainly faster than plain decoding; the best, vllm_ngram, has"
    )


def test_only_plain_decoding_is_said(tmp_path):
    results = store_run(tmp_path, BASELINES)
    assert words.verdicts(results)[0] == "humaneval: no method besides plain decoding was measured."


def test_few_prompts_and_a_busy_machine_are_warned_of(tmp_path):
    results = store_run(tmp_path, prompts=1)
    provenance = {"cpu": {"usable_cores": 2}, "noise_floor": {"humaneval": "8 prompts"}}
    results = replace(results, provenance=provenance, rows=results.rows.assign(load_average=9.0))
    warnings = " ".join(words.warnings(results))
    assert "humaneval: only 1 prompt; small samples say little." in warnings
    assert "loaded by something else (median load 9.0 on 2 cores)" in warnings
    assert "(8 prompts)" in words.noise_floor(results)[0]
    assert "can't tell" in printed(results) and "nan" not in printed(results)


@pytest.mark.parametrize("model, started_at, warned", [("a", "2026-01-01T", True), ("b", "2026-01-01T", False), ("a", "2026-06", False)])
def test_a_run_of_two_machines_is_warned_of(tmp_path, model, started_at, warned):
    results = store_run(tmp_path, BASELINES)
    begun = ["2025-12-31T23:00:00", *results.rows["started_at"][1:]]
    earlier = {"started_at": "2025-12-31T22", "cpu": {"model": model, "usable_cores": 2}}
    provenance = {"started_at": started_at, "cpu": {"model": "b", "usable_cores": 2}, "earlier": [earlier]}
    said = words.warnings(replace(results, rows=results.rows.assign(started_at=begun), provenance=provenance))
    assert any("begun on another machine" in line for line in said) == warned


@pytest.mark.parametrize("loaded, marked", [(0, False), (3, False), (4, True)])
def test_a_cell_that_was_measured_on_a_loaded_machine_is_marked(tmp_path, loaded, marked):
    busy = [f"HumanEval/{number}" for number in range(loaded)]
    results = store_run(
        tmp_path,
        prompts=6,
        change=lambda row: row | {"loaded": row["strategy"] == "vllm_control" and row["prompt_id"] in busy},
    )
    cells = results.summary.set_index("cell_id")
    assert cells["loaded_rows"].sum() == cells.loc["humaneval-vllm_control", "loaded_rows"] == loaded
    notes = cells.loc[cells["note"] != "", "note"].to_dict()
    assert notes == ({"humaneval-vllm_control": "measured on a loaded machine"} if marked else {})
    said, shown = " ".join(words.warnings(results)), " ".join(printed(results).split())
    warning = "humaneval: vllm_control was measured on a machine that was loaded by something else (4 of 6 rows)"
    assert (warning in said) == marked
    for page in (shown, render(results)):
        assert page.count("vllm_control (loaded)") == page.count("(loaded): something else had the machine") == marked


def test_equivalence_counts_the_worst_repeat_of_a_prompt(good):
    rows = good.rows[good.rows["cell_id"] == good.rows["cell_id"].iloc[0]].head(4)
    again = rows.assign(repeat=1, equivalence=["identical", "near_tie", "mismatch", "unchecked"])
    counts = words.equivalence_counts(pd.concat([again, rows]))
    assert counts == {"identical": 1, "near_tie": 1, "unchecked": 1, "mismatch": 1}
    assert words.equivalence_text(counts) == "1/4, 1 near tie, 1 mismatch, 1 unchecked"
    assert words.equivalence_text(dict.fromkeys(words.SEVERITY, 0)) == "none"


def test_forks_are_told_from_trees(good):
    summary = good.summary.assign(executor="fork")
    assert words.cell_labels(summary)[3] == "lookahead W5 N2 G5 (fork)"


def test_figures_of_each_kind_of_sweep(good, grid, tmp_path):
    names = set(plots.drawings(good))
    assert names == ALWAYS | CURVES | {"speedup_over_ngram", "step_compression_over_ngram"}
    assert set(plots.drawings(grid)) == ALWAYS | CURVES | {"speedup_grid"}
    windows = (*BASELINES, *(("lookahead", (window, 3, 5)) for window in (3, 5)))
    one = store_run(tmp_path, windows, prompts=1, sweep="window")
    assert set(plots.drawings(one)) == ALWAYS | CURVES | {"speedup_over_window", "step_compression_over_window"}
    plain = store_run(tmp_path, BASELINES, prompts=2, sweep="plain")
    paths = plots.draw_all(plain)
    assert {path.stem for path in paths} == {"speedup_by_method", "acceptance_histogram", "step_time"}
    for path in paths:
        assert path.parent == plain.folder / "plots"
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.with_suffix(".svg").read_text().startswith("<?xml")
        assert not pd.read_csv(path.with_suffix(".csv")).columns.str.startswith("Unnamed").any()


def test_figures_are_the_same_every_time(good):
    plots.draw_all(good)
    first = {path: path.read_bytes() for path in (good.folder / "plots").iterdir()}
    plots.draw_all(good)
    assert first == {path: path.read_bytes() for path in (good.folder / "plots").iterdir()}


def test_figures_of_a_spoilt_run(bad):
    assert len(plots.drawings(bad)) == 9


def test_speedup_figure_shows_the_summary(good):
    figure, data = drawn(plots.speedup_over(good, "ngram"))
    for panel, dataset in zip(figure.axes, example_results.DATASETS, strict=True):
        assert panel.get_title() == dataset and panel.get_xlabel() and panel.get_ylabel()
        (bars,) = [item for item in panel.containers if isinstance(item, ErrorbarContainer)]
        cells = good.summary[(good.summary["dataset"] == dataset) & good.summary["ngram"].notna()]
        line, _, (spans,) = bars
        assert list(line.get_xdata()) == list(example_results.NGRAMS)
        np.testing.assert_allclose(line.get_ydata(), cells["speedup"])
        lows_highs = np.array([segment[:, 1] for segment in spans.get_segments()])
        np.testing.assert_allclose(lows_highs, cells[["speedup_low", "speedup_high"]])
        assert 1.0 in [line.get_ydata()[0] for line in panel.lines]
        points = data[(data["dataset"] == dataset) & data["ngram"].notna()]
        np.testing.assert_allclose(points["speedup_high"], cells["speedup_high"])
    title = figure.get_suptitle()
    assert "smollm2-135m" in title and "float32" in title


def test_step_compression_figure_shows_s_and_c(good):
    figure, _ = drawn(plots.step_compression_over(good, "ngram"))
    top, bottom = figure.axes[0], figure.axes[2]
    cells = good.summary[(good.summary["dataset"] == "humaneval") & good.summary["ngram"].notna()]
    np.testing.assert_allclose(top.lines[1].get_ydata(), cells["step_compression"])
    np.testing.assert_allclose(bottom.lines[1].get_ydata(), cells["step_cost"])
    assert "tokens per step" in top.get_ylabel() and "cost" in bottom.get_ylabel()


def test_histogram_bars_are_shares_of_steps(good):
    figure, data = drawn(plots.acceptance_histogram(good))
    panel = figure.axes[0]
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels == [f"lookahead W5 N{ngram} G5" for ngram in reversed(example_results.NGRAMS)]
    totals = np.sum([[bar.get_width() for bar in bars] for bars in panel.containers], axis=0)
    np.testing.assert_allclose(totals, 1.0)
    cell = good.summary.set_index(["dataset", "ngram"]).loc[("humaneval", 6)]
    accepted = good.steps.loc[good.steps["cell_id"] == cell["cell_id"], "accepted"]
    assert panel.containers[0][0].get_width() == pytest.approx((accepted == 1).mean())
    shares = data[(data["dataset"] == "humaneval") & (data["name"] == cell["label"])].set_index("accepted")["share"]
    assert shares[1] == pytest.approx((accepted == 1).mean()) and shares.sum() == pytest.approx(1)


def test_grid_shows_every_cell(grid):
    figure, _ = drawn(plots.speedup_grid(grid, ["ngram", "window", "branches"]))
    shown = [text.get_text() for panel in figure.axes for text in panel.texts]
    cells = grid.summary[grid.summary["ngram"].notna()]
    unsure = cells["verdict"] == "can't tell"
    assert sorted(shown) == sorted(f"{speedup:.2f}" + "?" * doubt for speedup, doubt in zip(cells["speedup"], unsure))


def test_grid_with_cells_that_failed(grid):
    summary = grid.summary.copy()
    summary.loc[summary["branches"] == 3, ["speedup", "speedup_low", "speedup_high"]] = np.nan
    summary.loc[summary["dataset"] == "mt_bench", ["speedup", "speedup_low", "speedup_high"]] = np.nan
    assert "speedup_grid" in plots.drawings(replace(grid, summary=summary))
    summary[["speedup", "speedup_low", "speedup_high"]] = np.nan
    names = set(plots.drawings(replace(grid, summary=summary)))
    assert names == {"speedup_by_method", "acceptance_histogram", "compression_scaling", "step_cost_by_tokens", "step_time"}


def test_figures_leave_pyplot_and_its_settings_alone():
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams['axes.titlelocation']\n"
        "from lookahead_bench.report import plots, style\n"
        "with style.applied():\n"
        "    assert matplotlib.rcParams['axes.titlelocation'] != before\n"
        "    style.panels(1, 1, 4, 3)\n"
        "assert matplotlib.rcParams['axes.titlelocation'] == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def test_series_are_told_apart_by_colour_and_marker():
    looks = [tuple(sorted(look.items())) for look in plots.style.looks()]
    assert len(set(looks)) == len(looks) == 49


class _Page(html.parser.HTMLParser):
    """Open tags, addresses and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_whole_and_self_contained(good):
    figures = plots.draw_all(good)
    path = write_html(good)
    assert path == good.folder / "report.html"
    text = path.read_text(encoding="utf-8")
    page = _Page(text)
    assert page.open == [] and "script" not in page.tags and "link" not in page.tags
    assert len(page.addresses) == len(figures)
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert text.index("is the fastest") < text.index("<table>") < text.index("<img")
    assert text.index("<img") < text.index("Provenance") and "a &lt;fast&gt; one" in text
    assert not list(good.folder.glob("*.tmp"))


def test_page_escapes_what_comes_from_outside(bad):
    page = render(bad)
    assert "<script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Mismatches" in page and "Failures" in page and "drafted nothing at all" in page


def test_command_reports_every_run_below_a_folder(tmp_path, capsys):
    runs = [store_run(tmp_path, METHODS[:5], prompts=2, sweep=sweep).folder for sweep in ("a", "b")]
    assert main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    for run in runs:
        assert str(run / "report.html") in output and (run / "report.html").is_file()
        assert (run / "plots" / "speedup_over_ngram.png").is_file()
    assert find_runs(runs[0]) == [runs[0]]


def test_command_refuses_a_bad_path_in_one_line(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (tmp_path / "missing", file, empty):
        assert main([str(path)]) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1 and str(path) in error
        with pytest.raises(InputError):
            find_runs(path)


def test_command_in_a_process_of_its_own(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "lookahead_bench.report", str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert ended.returncode == 2 and ended.stdout == "" and len(ended.stderr.splitlines()) == 1


def test_a_line_means_the_same_method_in_every_panel(tmp_path):
    """Whatever order the cells of a data set were stored in."""
    results = store_run(tmp_path, (*METHODS, ("vllm_ngram", None)))
    turned = pd.concat([cells.iloc[::step] for step, (_, cells) in zip((1, -1), results.summary.groupby("dataset"))])
    figure, _ = drawn(plots.speedup_over(replace(results, summary=turned), "ngram"))
    for panel, (_, cells) in zip(figure.axes, turned.groupby("dataset")):
        speedups = cells.set_index("strategy")["speedup"]
        lines = {line.get_label(): line for line in panel.get_lines()}
        for method in ("autoregressive", "vllm_ngram"):
            assert lines[method].get_ydata()[0] == speedups[method]
    styles = [
        {line.get_label(): line.get_linestyle() for line in panel.get_lines() if line.get_label()[0] != "_"}
        for panel in figure.axes
    ]
    assert styles[0] == styles[1]


def test_methods_that_differ_in_one_parameter_have_names_of_their_own():
    frame = pd.DataFrame(
        {
            "label": ["vllm", "lookahead W5 N3 G5", "lookahead W5 N3 G5", "lookahead W5 N4 G5"],
            "executor": ["stock", "tree", "tree", "tree"],
            "parameters": [
                "{}",
                '{"ngram": 3, "pool_from_prompt": true, "seed": 0}',
                '{"ngram": 3, "pool_from_prompt": false, "seed": 0}',
                '{"ngram": 4, "pool_from_prompt": true, "seed": 0}',
            ],
        }
    )
    assert words.cell_labels(frame) == [
        "vllm",
        "lookahead W5 N3 G5 pool_from_prompt=True",
        "lookahead W5 N3 G5 pool_from_prompt=False",
        "lookahead W5 N4 G5",
    ]
