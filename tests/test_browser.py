"""The report in a real browser: it renders, says nothing on the console, asks for nothing, and fits a phone."""

from __future__ import annotations

import io
from dataclasses import replace

import pandas as pd
import pytest
from PIL import Image

from lookahead_bench.report.html import write_html
from lookahead_bench.report.plots import draw_all
from lookahead_bench.stats import summarise
from lookahead_bench.store import Results
from tests.browser import CHROMIUM, browser
from tests.example_results import METHODS, store_run

pytestmark = [pytest.mark.unit, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]

DESKTOP, PHONE = 1280, 390


def loaded_and_tested(results: Results) -> Results:
    """The same run with every cell once more, four requests at once, and with answers that were run on tests."""
    alone = results.rows.assign(
        load_group=results.rows["prompt_tokens"], queued_seconds=0.0, passed=results.rows["prompt_tokens"].mod(2).eq(0)
    )
    # Four at once: the groups are of two, and lookahead's decoding takes three times as long.
    slower = 1.0 + 2.0 * (alone["strategy"] == "lookahead")
    loaded = alone.assign(
        cell_id=alone["cell_id"] + "-4", concurrency=4, load_group=alone["load_group"] // 2,
        decode_seconds=alone["decode_seconds"] * slower,
    )  # fmt: skip
    steps = results.steps.assign(emitted_at_seconds=results.steps["seconds"])
    steps = pd.concat([steps, steps.assign(cell_id=steps["cell_id"] + "-4")], ignore_index=True)
    rows = pd.concat([alone, loaded], ignore_index=True)
    return replace(results, rows=rows, steps=steps, summary=summarise(rows, steps, seed=0))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    results = loaded_and_tested(store_run(tmp_path_factory.mktemp("run"), METHODS[:5], prompts=5))
    draw_all(results)
    return write_html(results)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize("width", (DESKTOP, PHONE))
def test_report_renders_and_asks_for_nothing(report, page, width):
    page.requests.clear()
    page.problems.clear()
    page.open(report, width)
    assert page.value("innerWidth") == width
    assert page.value("document.querySelector('h1').getBoundingClientRect().height") > 0
    figures = page.value("[...document.images].map(image => [image.complete, image.naturalWidth])")
    assert len(figures) >= 9 and all(complete and wide for complete, wide in figures)
    assert page.problems == []
    outside = [address for address in page.requests if not address.startswith("data:image/")]
    assert outside == [report.as_uri()]
    colours = Image.open(io.BytesIO(page.picture())).convert("RGB").getcolors(1 << 24)
    assert len(colours) > 20


def test_report_fits_a_phone(report, page):
    page.open(report, PHONE)
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    # What is wider than the screen scrolls in a place of its own, which is as wide as the text.
    assert page.value("[...document.querySelectorAll('.wide')].every(place => place.getBoundingClientRect().right <= innerWidth)")
    assert page.value("Math.min(...[...document.images].map(image => image.getBoundingClientRect().width))") > PHONE
    assert page.value("parseFloat(getComputedStyle(document.body).fontSize)") >= 16


def test_verdict_comes_first_and_figures_after_the_table(report, page):
    page.open(report, DESKTOP)
    places = page.value("['.verdict', 'table', 'img', 'pre'].map(kind => document.querySelector(kind).getBoundingClientRect().top)")
    assert places == sorted(places)


def test_page_has_the_tables_and_sentences_of_the_terminal(report, page):
    page.open(report, DESKTOP)
    titles = page.value("[...document.querySelectorAll('h2')].map(heading => heading.innerText)")
    assert titles[titles.index("Results") :][:3] == ["Results", "Several requests at once", "Problems solved"]
    captions = page.value("[...document.querySelectorAll('caption')].map(caption => caption.innerText)")
    for dataset in ("humaneval", "mt_bench"):
        for about in ("throughput of all requests together", "latency of a request, ms", "pass@1"):
            assert f"{dataset}: {about}" in captions
    line = page.value(
        "[...document.querySelectorAll('table')].filter(table => table.innerText.startsWith('humaneval: pass@1'))[0]"
        ".tBodies[0].rows[0].innerText"
    )
    assert line.split("\t")[:3] == ["vllm, 1 at once", "5", "60.0%"]
    verdict = page.value("document.querySelector('.verdict').innerText")
    assert "humaneval: lookahead W5 N3 G5 against plain decoding with as many requests at once: " in verdict
    assert "humaneval: pass@1: vllm, 1 at once solves 60.0% of 5 problems" in verdict


def test_what_leaves_a_page_would_be_seen(tmp_path, page):
    """The check itself: a page that asks for something, fails in a script and is too wide."""
    path = tmp_path / "bad.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><script>nothing()</script><div style="width:900px">wide</div>')
    page.requests.clear()
    page.problems.clear()
    page.open(path, PHONE)
    assert "http://127.0.0.1:9/x.png" in page.requests
    assert any("nothing is not defined" in problem for problem in page.problems)
    assert page.value("document.documentElement.scrollWidth") > PHONE
