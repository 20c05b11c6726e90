"""Data sets: what is read, what is sampled, what is refused."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lookahead_bench.commandline import preflight
from lookahead_bench.data import data_digest, load_prompts
from lookahead_bench.errors import InputError

pytestmark = pytest.mark.unit

JSONL = {"jsonl": {"kind": "jsonl", "chat": "auto"}}


def load(sources: dict, seed: int = 0, **config: object):
    return load_prompts({"limit": None, "path": None, "sources": sources, **config}, seed)


def load_lines(tmp_path: Path, *lines: object, **config: object):
    """Prompts of a JSONL file with these lines; a text is written as it is."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return load(JSONL, path=str(path), **config)["jsonl"]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (prompt,) = load_lines(tmp_path, '\ufeff{"id": "a", "prompt": "x"}')
    assert prompt.turns == ("x",)


def test_humaneval_is_all_164_problems(packaged_sources):
    prompts = load(packaged_sources)["humaneval"]
    assert [prompt.prompt_id for prompt in prompts] == [f"HumanEval/{number}" for number in range(164)]
    first = prompts[0]
    assert set(first.metadata) == {"task_id", "prompt", "entry_point", "test", "canonical_solution"}
    assert first.metadata["entry_point"] == "has_close_elements"
    assert first.metadata["prompt"].startswith("from typing import List\n\n\ndef has_close_elements")
    assert first.chat and len(first.turns) == 1
    assert first.metadata["prompt"].rstrip("\n") in first.turns[0]


def test_solutions_in_the_metadata_pass_the_tests_beside_them(packaged_sources):
    for prompt in load(packaged_sources)["humaneval"][:20]:
        scope: dict[str, object] = {}
        data = prompt.metadata
        exec(data["prompt"] + data["canonical_solution"] + "\n" + data["test"], scope)
        scope["check"](scope[data["entry_point"]])


def test_mt_bench_is_80_questions_of_two_turns(packaged_sources):
    prompts = load(packaged_sources)["mt_bench"]
    assert [prompt.prompt_id for prompt in prompts] == [str(number) for number in range(81, 161)]
    assert {prompt.num_turns for prompt in prompts} == {2}
    assert len({prompt.category for prompt in prompts}) == 8


def test_a_sample_is_seeded_ordered_and_nested(packaged_sources):
    def ids(limit: int, seed: int) -> list[str]:
        return [prompt.prompt_id for prompt in load(packaged_sources, seed, limit=limit)["humaneval"]]

    assert ids(8, 0) == ids(8, 0)
    assert ids(8, 0) != ids(8, 1)
    assert set(ids(8, 0)) < set(ids(20, 0))
    assert ids(20, 0) == sorted(ids(20, 0), key=lambda name: int(name.split("/")[1]))
    assert len(ids(1000, 0)) == 164


def test_a_data_set_s_sample_does_not_depend_on_the_others(packaged_sources):
    alone = load({"mt_bench": packaged_sources["mt_bench"]}, limit=5)
    assert load(packaged_sources, limit=5)["mt_bench"] == alone["mt_bench"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "all"])
def test_a_limit_that_leaves_nothing_is_refused(packaged_sources, limit):
    with pytest.raises(InputError, match="dataset.limit="):
        load(packaged_sources, limit=limit)


def test_the_digest_follows_what_is_asked(packaged_sources):
    few = load(packaged_sources, limit=3)
    assert data_digest(few) == data_digest(load(packaged_sources, limit=3))
    assert data_digest(few) != data_digest(load(packaged_sources, limit=4))
    reworded = {name: dict(source) for name, source in packaged_sources.items()}
    reworded["humaneval"]["instruction"] = "Go on: {prompt}"
    assert data_digest(few) != data_digest(load(reworded, limit=3))


def test_a_changed_package_is_refused(packaged_sources):
    changed = dict(packaged_sources["mt_bench"], sha256="0" * 64)
    with pytest.raises(InputError, match="question.jsonl has sha256"):
        load({"mt_bench": changed})


def test_jsonl_takes_each_kind_of_prompt(tmp_path):
    text, chat, ids = load_lines(
        tmp_path,
        {"id": "a", "prompt": "Once"},
        "",
        {"id": 2, "turns": ["Hi\u2028there", "More"], "category": "talk", "source": "me"},
        {"id": "c", "prompt_token_ids": [1, 2, 3]},
    )
    assert (text.prompt_id, text.turns, text.chat) == ("a", ("Once",), False)
    assert (chat.prompt_id, chat.turns, chat.chat) == ("2", ("Hi\u2028there", "More"), True)
    assert (chat.category, chat.metadata) == ("talk", {"source": "me"})
    assert (ids.token_ids, ids.turns) == ((1, 2, 3), ())


def test_jsonl_is_read_anew_after_an_edit_and_unpacked(tmp_path):
    assert load_lines(tmp_path, {"id": "a", "prompt": "one"})[0].turns == ("one",)
    assert load_lines(tmp_path, {"id": "a", "prompt": "two"})[0].turns == ("two",)
    packed = tmp_path / "own.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"id": "a", "prompt": "three"}\n'))
    assert load(JSONL, path=str(packed))["jsonl"][0].turns == ("three",)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "b", "prompt": ', "line 2 is not JSON"),
        ('["b", "text"]', "line 2 must be a JSON object, it is list"),
        ({"prompt": "x"}, "line 2 has no 'id'"),
        ({"id": "b"}, "line 2 must have one of prompt, turns and prompt_token_ids, it has none"),
        ({"id": "b", "prompt": "x", "turns": ["y"]}, "it has prompt and turns"),
        ({"id": "b", "prompt": ""}, "line 2: prompt must be a text that is not empty"),
        ({"id": "b", "prompt": 5}, "line 2: prompt must be"),
        ({"id": "b", "turns": []}, "line 2: turns must be a list of texts"),
        ({"id": "b", "turns": ["x", ""]}, "line 2: turns must be"),
        ({"id": "b", "turns": "xy"}, "line 2: turns must be"),
        ({"id": "b", "prompt_token_ids": []}, "line 2: prompt_token_ids must be"),
        ({"id": "b", "prompt_token_ids": [1, -1]}, "line 2: prompt_token_ids must be"),
        ({"id": "b", "prompt_token_ids": [1.0]}, "line 2: prompt_token_ids must be"),
        ({"id": "b", "prompt": "a \ud83d b"}, "line 2: prompt has half of a surrogate pair, '\\ud83d'"),
        ('{"id": "b", "x": ' + "[" * 100_000, "line 2 can't be read: its values are nested too deeply"),
        ({"id": None, "prompt": "x"}, "line 2: id must be"),
        ({"id": "a", "prompt": "x"}, "line 2: id 'a' was there before"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, says):
    with pytest.raises(InputError) as caught:
        load_lines(tmp_path, {"id": "a", "prompt": "fine"}, line)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_category_is_no_category_of_that_name(tmp_path):
    prompts = load_lines(tmp_path, {"id": 1, "prompt": "x", "category": None}, {"id": 2, "prompt": "x", "category": "y"})
    assert [prompt.category for prompt in prompts] == ["", "y"]


def test_a_bad_line_is_found_although_the_sample_leaves_it_out(tmp_path):
    with pytest.raises(InputError, match="line 3 is not JSON"):
        load_lines(tmp_path, {"id": 1, "prompt": "x"}, {"id": 2, "prompt": "y"}, "nonsense", limit=1)


@pytest.mark.parametrize("lines", [(), ("", "")])
def test_no_prompts_is_an_error(tmp_path, lines):
    with pytest.raises(InputError, match="the data set jsonl has no prompts"):
        load_lines(tmp_path, *lines)


def test_bytes_that_are_no_text_are_one_line(tmp_path):
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        load(JSONL, path=str(path))


@pytest.mark.parametrize("path", [None, "", "/no/such/file.jsonl"])
def test_jsonl_without_a_file_is_refused(path):
    with pytest.raises(InputError, match="dataset.path="):
        load(JSONL, path=path)


@pytest.mark.parametrize("sources", [{}, None])
def test_no_data_set_is_refused(sources):
    with pytest.raises(InputError, match="dataset="):
        load(sources)


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="dataset.sources.x.kind='ftp': must be package, jsonl or hub"):
        load({"x": {"kind": "ftp"}})


@pytest.fixture
def hub_source(tmp_path) -> dict:
    """A data set as it lies on the hub, in a folder."""
    folder = tmp_path / "sums"
    folder.mkdir()
    table = pa.table({"question": ["1+1?", "2+2?", "3+3?"], "answer": ["2", "4", "6"]})
    pq.write_table(table, folder / "test.parquet")
    columns = {"id": None, "prompt": "question", "metadata": ["answer"]}
    return {"kind": "hub", "path": str(folder), "name": None, "split": "test", "columns": columns, "chat": True}


def test_a_hub_data_set_is_mapped_by_its_columns(hub_source, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    prompts = load({"sums": hub_source | {"instruction": "Answer shortly: {prompt}"}})["sums"]
    assert [prompt.prompt_id for prompt in prompts] == ["0", "1", "2"]
    assert prompts[1].turns == ("Answer shortly: 2+2?",)
    assert prompts[1].metadata == {"answer": "4", "prompt": "2+2?"}
    misnamed = hub_source | {"columns": {"prompt": "text"}}
    with pytest.raises(InputError, match="row 0 has no 'text', it has: row number, question, answer"):
        load({"sums": misnamed})
    with pytest.raises(InputError, match="cannot load data set"):
        load({"sums": hub_source | {"split": "none"}})


def test_an_unreachable_hub_is_one_line(tmp_path):
    program = (
        "from lookahead_bench.data import load_prompts\n"
        "source = {'kind': 'hub', 'path': 'owner/data', 'split': 'test', 'columns': {'prompt': 'text'}}\n"
        "try: load_prompts({'sources': {'data': source}}, 0)\n"
        "except ValueError as error: print(error)\n"
    )
    unreachable = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | unreachable, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("the hub cannot be reached for dataset 'owner/data'")
    assert done.stdout.count("\n") == 1 and done.stderr == ""


@pytest.mark.parametrize(
    ("overrides", "counts"),
    [
        ([], {"humaneval": 164, "mt_bench": 80}),
        (["dataset=humaneval"], {"humaneval": 164}),
        (["dataset=[mt_bench,humaneval]", "dataset.limit=3"], {"humaneval": 3, "mt_bench": 3}),
        (["dataset=jsonl", "dataset.path={file}"], {"jsonl": 1}),
        (["dataset=[jsonl,mt_bench]", "dataset.path={file}", "dataset.limit=2"], {"jsonl": 1, "mt_bench": 2}),
    ],
)
def test_the_dataset_group_takes_one_or_a_list(tmp_path, overrides, counts):
    (tmp_path / "own.jsonl").write_text('{"id": 1, "prompt": "x"}\n')
    (config,) = preflight([text.format(file=tmp_path / "own.jsonl") for text in overrides])
    found = load_prompts(config.dataset, 0)
    assert {name: len(prompts) for name, prompts in found.items()} == counts
