"""Latency and throughput of several requests in flight: by hand, and with a real engine."""

from __future__ import annotations

import pandas as pd
import pytest

from lookahead_bench.load import inter_token, latencies, load_columns, loaded_phases
from lookahead_bench.report.load import stops_paying

PLAIN, METHOD = "plain", "method"


def row(prompt: str, queued: float, prefill: float, decode: float, tokens: int, **values) -> dict[str, object]:
    return {
        "cell_id": PLAIN, "strategy": "vllm", "is_baseline": True, "model": "m", "dataset": "d", "dtype": "float32",
        "concurrency": 2, "temperature": 0.0, "max_new_tokens": 8, "prompt_id": prompt, "turn": 0, "repeat": 0,
        "load_group": 0, "started_at": "1", "error": None, "queued_seconds": queued, "prefill_seconds": prefill,
        "decode_seconds": decode, "new_tokens": tokens,
    } | values  # fmt: skip


def steps_of(row: dict[str, object], accepted: list[int]) -> list[dict[str, object]]:
    """Steps of equal length, which emit what is listed."""
    each = row["decode_seconds"] / len(accepted)
    return [
        {name: row[name] for name in ("cell_id", "prompt_id", "turn", "repeat")}
        | {"step": step, "accepted": count, "emitted_at_seconds": (step + 1) * each}
        for step, count in enumerate(accepted)
    ]


def group(cell: str = PLAIN, slow: float = 1.0, **values) -> tuple[list[dict], list[dict]]:
    """Three requests, two at once: a and b begin; c takes a's place at 3 s; b ends at 5 s and the phase with it."""
    values = {"cell_id": cell, "is_baseline": cell == PLAIN, "strategy": "vllm" if cell == PLAIN else "m"} | values
    rows = [
        row("a", 0.0, 1.0 * slow, 2.0 * slow, 3, **values),
        row("b", 0.0, 1.0 * slow, 4.0 * slow, 5, **values),
        row("c", 3.0 * slow, 1.0 * slow, 3.0 * slow, 7, **values),
    ]
    accepted = [[1, 1], [1, 1, 1, 1], [2, 2, 2]]
    return rows, [step for one, counts in zip(rows, accepted) for step in steps_of(one, counts)]


def frames(*groups: tuple[list[dict], list[dict]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.DataFrame([r for rows, _ in groups for r in rows]), pd.DataFrame([s for _, steps in groups for s in steps])


@pytest.mark.unit
def test_throughput_is_what_is_emitted_while_there_are_as_many_in_flight_as_there_should_be():
    [phase] = loaded_phases(*frames(group())).to_dict("records")
    # a: 3 tokens, b: 5; c begins at 3 and emits its first token at 4 and two more at 5, when b ends.
    assert (phase["tokens"], phase["seconds"]) == (3 + 5 + 3, 5)
    assert phase["busy_seconds"] == pytest.approx(2 * 5)


@pytest.mark.unit
def test_a_row_that_was_done_again_is_no_load_by_itself():
    rows, steps = group()
    rows[0] = row("a", 2.0, 1.0, 90.0, 3, started_at="2")
    [phase] = loaded_phases(*frames((rows, steps))).to_dict("records")
    # The first attempt has b and c: c began last, and b ends first.
    assert phase["seconds"] == 5
    assert phase["tokens"] == 5 + 3


@pytest.mark.unit
def test_failed_rows_and_rows_of_earlier_versions_have_no_load():
    rows, steps = frames(group())
    assert loaded_phases(rows.assign(error="broken"), steps).empty
    assert loaded_phases(rows.drop(columns="queued_seconds"), steps).empty


@pytest.mark.unit
def test_a_chunk_is_one_inter_token_latency_and_its_tokens_share_it():
    rows, steps = frames(group())
    assert sorted(inter_token(steps)) == [1.0] * 9
    found = latencies(rows, steps)
    assert found["itl_p50_seconds"] == 1.0
    # Per token: a 1 s, b 1 s, c 0.5 s.
    assert found["tpot_p50_seconds"] == 1.0
    assert found["tpot_p90_seconds"] == 1.0
    assert latencies(rows[rows["prompt_id"] == "c"], steps[steps["prompt_id"] == "c"])["tpot_p50_seconds"] == 0.5
    assert found["ttft_p99_seconds"] == 1.0


@pytest.mark.unit
@pytest.mark.parametrize(
    "verdicts, said",
    [
        ({1: "faster", 4: "slower"}, "more tokens/s with 1, fewer with 4; it stops paying between 1 and 4."),
        ({1: "faster", 2: "can't tell", 4: "slower"}, "certain up to 1, that it doesn't from 4 on."),
        ({1: "faster", 2: "faster"}, "more tokens/s with 1 and 2; it still pays with 2."),
        ({2: "can't tell"}, "it can't be told with 2; nowhere is it certain to pay."),
    ],
)
def test_where_a_method_stops_paying_is_said_in_words(verdicts, said):
    assert stops_paying(verdicts).endswith(said)


@pytest.mark.unit
@pytest.mark.parametrize(
    "groups, slow, expected", [(8, 1.25, "slower"), (8, 0.5, "faster"), (4, 0.5, "can't tell"), (8, 1.0, "can't tell")]
)
def test_throughput_is_compared_group_by_group(groups, slow, expected):
    both = [group(cell, factor * (1 + number / 50), load_group=number)
            for number in range(groups) for cell, factor in ((PLAIN, 1.0), (METHOD, slow))]  # fmt: skip
    for number, (rows, steps) in enumerate(both):
        for one in rows + steps:
            one["prompt_id"] = f"{number // 2} {one['prompt_id']}"
    found = load_columns(*frames(*both), seed=0)
    assert found[METHOD]["throughput_ratio"] == pytest.approx(1 / slow)
    assert (found[METHOD]["throughput_verdict"], found[METHOD]["throughput_groups"]) == (expected, groups)
    assert found[PLAIN]["throughput_verdict"] == ""
    assert found[METHOD]["requests_in_flight"] == pytest.approx(2)
    assert found[PLAIN]["throughput"] == pytest.approx(found[METHOD]["throughput"] * slow)
