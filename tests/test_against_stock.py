"""Every method against the best of stock vLLM's own drafters: numbers worked out by hand, and what is shown of them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from lookahead_bench.report import table, words
from lookahead_bench.report.html import render
from lookahead_bench.rivals import best_of, is_stock_drafter, stock_columns
from tests.example_results import BASELINES, METHODS, store_run

pytestmark = pytest.mark.unit

PROMPTS = 8


def cell(strategy: str, seconds: list[float], dataset: str = "d", prompts: range | None = None, tokens: int = 11) -> pd.DataFrame:
    """Rows of a cell: 10 decode tokens on every prompt, in as many seconds as are given."""
    return pd.DataFrame(
        {
            "strategy": strategy, "model": "m", "dataset": dataset, "dtype": "float32", "concurrency": 1, "temperature": 0.0,
            "max_new_tokens": tokens, "prompt_id": [str(prompt) for prompt in prompts or range(len(seconds))], "turn": 0,
            "repeat": 0, "new_tokens": pd.array([tokens] * len(seconds), "Int64"), "decode_seconds": seconds,
            "decode_steps": pd.array([tokens - 1] * len(seconds), "Int64"), "error": None,
        }
    )  # fmt: skip


def columns(reach=None, **cells: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(stock_columns(cells, reach or {}, seed=0)).T


def test_who_is_a_stock_drafter():
    names = ("vllm", "vllm_control", "vllm_ngram", "vllm_suffix", "vllm_draft_model", "autoregressive", "lookahead")
    assert [name for name in names if is_stock_drafter(name)] == ["vllm_ngram", "vllm_suffix", "vllm_draft_model"]


def test_the_best_is_the_one_with_the_most_tokens_per_second():
    found = columns(
        plain=cell("vllm", [2.0] * PROMPTS),
        slow=cell("vllm_ngram", [1.5] * PROMPTS),
        fast=cell("vllm_ngram", [1.0] * PROMPTS),
        ours=cell("lookahead", [0.8] * PROMPTS),
    )
    assert set(found["best_stock"]) == {"fast"}
    assert np.isnan(found.loc["plain", "speedup_vs_stock"]) and found.loc["plain", "verdict_vs_stock"] == ""
    assert found.loc["fast", "speedup_vs_stock"] == 1 and np.isnan(found.loc["fast", "speedup_vs_stock_low"])
    assert found.loc["slow", "speedup_vs_stock"] == pytest.approx(1 / 1.5)
    assert found.loc["slow", "verdict_vs_stock"] == "slower"
    # All prompts have one ratio, and so has the interval.
    ours = found.loc["ours", ["speedup_vs_stock", "speedup_vs_stock_low", "speedup_vs_stock_high"]].astype(float)
    assert ours.tolist() == pytest.approx([1.25] * 3)
    assert found.loc["ours", "verdict_vs_stock"] == "faster"


def test_the_ratio_is_one_of_sums_over_the_prompts_that_both_have():
    stock = cell("vllm_suffix", [1.0, 1.0, 4.0])
    ours = cell("lookahead", [2.0, 1.0], prompts=range(1, 3))
    assert columns(stock=stock, ours=ours).loc["ours", "speedup_vs_stock"] == pytest.approx((20 / 3) / (20 / 5))


def test_what_equal_processes_differ_by_has_to_be_exceeded():
    cells = {"stock": cell("vllm_ngram", [1.0] * PROMPTS), "ours": cell("lookahead", [0.95] * PROMPTS)}
    place = ("m", "d", "float32", 1, 0.0, 11)
    assert columns(**cells).loc["ours", "verdict_vs_stock"] == "faster"
    assert columns({place: (0.94, 1.06)}, **cells).loc["ours", "verdict_vs_stock"] == "can't tell"


def test_few_prompts_decide_nothing():
    found = columns(stock=cell("vllm_ngram", [1.0] * 4), ours=cell("lookahead", [0.5] * 4))
    assert found.loc["ours", "speedup_vs_stock"] == 2 and found.loc["ours", "verdict_vs_stock"] == "can't tell"


def test_each_data_set_has_its_own_best():
    found = columns(
        a=cell("vllm_ngram", [1.0] * PROMPTS, "x"),
        b=cell("vllm_suffix", [2.0] * PROMPTS, "x"),
        c=cell("vllm_suffix", [3.0] * PROMPTS, "y"),
        d=cell("lookahead", [3.0] * PROMPTS, "y"),
        e=cell("lookahead", [3.0] * PROMPTS, "z"),
    )
    assert found["best_stock"].tolist() == ["a", "a", "c", "c", ""]
    assert found.loc["d", "speedup_vs_stock"] == 1 and np.isnan(found.loc["e", "speedup_vs_stock"])


def test_the_best_is_chosen_on_the_rows_that_all_have():
    # Prompt 0 is hard, and only the first drafter had it.
    both = {"a": cell("vllm_ngram", [9.0, 1.0, 1.0]), "b": cell("vllm_ngram", [1.1, 1.1], prompts=range(1, 3))}
    assert best_of(both) == "a"


def test_a_drafter_that_hardly_finished_is_not_the_best():
    dead = cell("vllm_suffix", [0.1] + [np.nan] * 7).assign(error=[None] + ["died"] * 7)
    assert best_of({"dead": dead, "alive": cell("vllm_ngram", [1.0] * 8)}) == "alive"
    assert best_of({"dead": dead.iloc[1:]}) == "" and best_of({}) == ""


def test_drafters_without_a_common_row_are_not_ranked():
    assert best_of({"a": cell("vllm_ngram", [1.0]), "b": cell("vllm_ngram", [1.0], prompts=range(5, 6))}) == ""


@pytest.fixture(scope="module")
def rivals(tmp_path_factory):
    return store_run(tmp_path_factory.mktemp("rivals"), (*METHODS, ("vllm_ngram", None)), prompts=6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return store_run(tmp_path_factory.mktemp("alone"), METHODS, prompts=6)


def printed(results) -> str:
    stream = io.StringIO()
    table.print_table(results, Console(file=stream))
    return stream.getvalue()


def test_the_column_is_shown_where_there_is_a_stock_drafter(rivals):
    text = printed(rivals)
    assert text.count("vs stock") == 3 and table.STOCK_LEGEND in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= table.PIPE_WIDTH + table.STOCK_WIDTH
    (best, _) = (line.split() for line in text.splitlines() if line.startswith("vllm_ngram"))
    assert best[-1] == "best"
    one = rivals.summary.set_index(["dataset", "ngram"]).loc[("humaneval", 5)]
    line = next(line for line in text.splitlines() if line.startswith("lookahead W5 N5 G5"))
    assert line.rstrip().endswith(f"{one['speedup_vs_stock']:.2f} [{one['speedup_vs_stock_low']:.2f}, {one['speedup_vs_stock_high']:.2f}]")
    page = render(rivals)
    assert "<th>vs stock</th>" in page and "<td>best</td>" in page
    assert page.index("the tokens/s of the best stock drafter, vllm_ngram") < page.index("<table>")


def test_the_column_is_hidden_where_there_is_none(alone):
    for results in (alone, replace(alone, summary=alone.summary.drop(columns="best_stock"))):
        assert "vs stock" not in printed(results) and "vs stock" not in render(results)
        assert words.against_stock(results) == []
        assert all(len(line) == len(table.HEADINGS) for line in table.lines(results.summary, results))


def test_words_name_both_and_say_how_they_were_chosen(rivals):
    best = rivals.summary[rivals.summary["dataset"] == "humaneval"].nlargest(1, "speedup").iloc[0]
    said = words.against_stock(rivals)[0]
    assert said.startswith(f"humaneval: {best['label']} has {best['speedup_vs_stock']:.2f}× (95 % interval")
    assert said.endswith("drafter, vllm_ngram: faster. Each is the fastest of its kind on these very prompts, of 5 and of 1.")


def test_one_of_each_was_not_chosen(tmp_path):
    one = store_run(tmp_path, (*BASELINES, ("lookahead", (5, 3, 5)), ("vllm_ngram", None)), prompts=6)
    assert all(said.endswith("vllm_ngram: faster.") for said in words.against_stock(one))


def test_only_stock_drafters_have_no_sentence(tmp_path):
    assert words.against_stock(store_run(tmp_path, (*BASELINES, ("vllm_ngram", None)), prompts=6)) == []
