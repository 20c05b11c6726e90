from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from lookahead_bench.records import Cell, EngineSpec, Prompt, StrategySpec
from lookahead_bench.schedule import baseline_of, remaining, schedule

pytestmark = pytest.mark.unit


def make_plan(repeats: int = 1, seed: int = 0, concurrency: int = 1):
    cells = tuple(
        Cell(
            cell_id=f"{dataset}-{name}",
            dataset=dataset,
            strategy=StrategySpec(name),
            engine=EngineSpec("m", name),
            max_new_tokens=8,
            concurrency=concurrency,
            is_baseline=name == "vllm",
        )
        for dataset in ("one", "two")
        for name in ("vllm", "vllm_control", "lookahead")
    )
    prompts = {
        "one": [Prompt(str(i), "one", ("q",)) for i in range(5)],
        "two": [Prompt(str(i), "two", ("q", "and?")) for i in range(3)],
    }
    return SimpleNamespace(cells=cells, repeats=repeats, seed=seed), prompts


def keys(work):
    return [key for item in work for key in item.keys]


@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_everything_is_there_once(concurrency):
    work = schedule(*make_plan(repeats=2, concurrency=concurrency))
    assert len(keys(work)) == len(set(keys(work))) == 2 * 3 * (5 + 3 * 2)
    assert max(len(item.prompts) for item in work) == (1 if concurrency == 1 else 5)
    assert all(prompt.dataset == item.cell.dataset for item in work for prompt in item.prompts)


def test_a_seed_is_an_order():
    assert keys(schedule(*make_plan(seed=1))) == keys(schedule(*make_plan(seed=1)))
    assert keys(schedule(*make_plan(seed=1))) != keys(schedule(*make_plan(seed=2)))


def test_cells_take_turns_on_each_prompt_in_changing_order():
    work = schedule(*make_plan(repeats=2))
    orders = set()
    for start in range(0, len(work), 3):
        turn = work[start : start + 3]
        assert len({(item.cell.dataset, item.prompts[0].prompt_id, item.turn, item.repeat) for item in turn}) == 1
        assert len({item.cell.cell_id for item in turn}) == 3
        orders.add(tuple(item.cell.strategy.name for item in turn))
    assert len(orders) > 1
    assert {item.cell.dataset for item in work[:15]} == {"one", "two"}


def test_a_second_turn_follows_the_first_turn_of_all_cells():
    place = {key: index for index, key in enumerate(keys(schedule(*make_plan(repeats=2, concurrency=2))))}
    for key, index in place.items():
        if key.turn == 1:
            firsts = [
                at for other, at in place.items()
                if other.turn == 0 and other[1] == key.prompt_id and other.repeat == key.repeat
                and other.cell_id.startswith("two")
            ]  # fmt: skip
            assert len(firsts) == 3
            assert max(firsts) < index


def test_what_is_done_is_left_out_and_the_order_stays():
    work = schedule(*make_plan(concurrency=2))
    done = set(keys(work)[::3])
    assert keys(remaining(work, done)) == [key for key in keys(work) if key not in done]
    assert remaining(work, set(keys(work))) == []


def test_a_resumed_group_has_the_same_members_in_the_same_order():
    work = schedule(*make_plan(concurrency=2))
    done = set(keys(work)[::3])
    whole = {(item.cell.cell_id, item.turn, item.group): item.prompts for item in work}
    left = remaining(work, done)
    assert left and any(item.stored for item in left)
    for item in left:
        assert item.prompts == whole[item.cell.cell_id, item.turn, item.group]
        assert {prompt.prompt_id for prompt in item.wanted} == {prompt.prompt_id for prompt in item.prompts} - item.stored
        assert item.wanted


@pytest.mark.parametrize("concurrency", [2, 3])
def test_every_group_can_reach_the_load_and_none_is_much_larger(concurrency):
    plan, prompts = make_plan(concurrency=concurrency)
    prompts["one"] = [Prompt(str(i), "one", ("q",)) for i in range(23)]
    sizes = {len(item.prompts) for item in schedule(plan, prompts) if item.cell.dataset == "one"}
    assert min(sizes) >= 2 * concurrency
    assert max(sizes) - min(sizes) <= 1


def test_each_number_of_requests_at_once_has_groups_of_its_own():
    plan, prompts = make_plan()
    more = [replace(cell, cell_id=f"{cell.cell_id} x2", concurrency=2) for cell in plan.cells]
    plan.cells = (*plan.cells, *more)
    work = schedule(plan, prompts)
    assert len(keys(work)) == len(set(keys(work))) == 2 * 3 * (5 + 3 * 2)
    for item in work:
        assert len(item.prompts) == (1 if item.cell.concurrency == 1 else len(prompts[item.cell.dataset]))
    groups = {}
    for item in work:
        members = tuple(prompt.prompt_id for prompt in item.prompts)
        groups.setdefault((item.cell.dataset, item.cell.concurrency, item.turn, item.group), set()).add(members)
    assert {len(members) for members in groups.values()} == {1}


def test_the_baseline_has_the_same_settings():
    plan, _ = make_plan()
    assert baseline_of(plan.cells[2], plan.cells) == plan.cells[0]
    assert baseline_of(plan.cells[5], plan.cells) == plan.cells[3]
    assert baseline_of(plan.cells[2], plan.cells[1:]) is None
