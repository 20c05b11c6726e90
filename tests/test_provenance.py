from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lookahead_bench import provenance
from lookahead_bench.models import ModelSource
from lookahead_bench.records import Prompt

pytestmark = pytest.mark.unit


def test_a_record_says_where_when_and_with_what():
    model = ModelSource("m", "/models/m", "abc", True)
    prompts = {"d": [Prompt("1", "d", ("hello",))]}
    record = json.loads(json.dumps(provenance.collect(None, model, prompts)))
    assert record["model"]["digest"] == "abc"
    assert record["data"]["d"]["prompts"] == 1
    assert len(record["data"]["d"]["digest"]) >= 32
    assert record["cpu"]["cores"] >= record["cpu"]["usable_cores"] >= 1
    assert record["memory_bytes"] > 1 << 28
    assert set(record["versions"]) >= {"python", "torch", "transformers", "vllm"}
    assert record["started_at"].endswith("+00:00")
    assert record["plan"] is None


def test_only_variables_that_change_speed_are_recorded(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("VLLM_API_KEY", "hidden")
    monkeypatch.setenv("WANDB_API_KEY", "hidden")
    monkeypatch.setenv("HOME_MADE", "hidden")
    recorded = provenance.environment()
    assert recorded["OMP_NUM_THREADS"] == "3"
    assert "hidden" not in recorded.values()


def test_variables_of_another_environment_can_be_asked_for():
    assert provenance.environment({"LD_PRELOAD": "/a.so", "HOME": "/root", "OMP_A_TOKEN": "x"}) == {"LD_PRELOAD": "/a.so"}


def test_a_resumed_run_keeps_where_its_earlier_parts_were_made():
    first = provenance.resumed({}, {"started_at": "1", "host": "a", "plan": {}, "cpu": {"model": "x"}})
    assert "earlier" not in first
    second = provenance.resumed(first, {"started_at": "2", "host": "b"})
    third = provenance.resumed(second, {"started_at": "3", "host": "c"})
    assert (third["started_at"], third["host"]) == ("3", "c")
    assert [(part["started_at"], part["host"]) for part in third["earlier"]] == [("1", "a"), ("2", "b")]
    assert third["earlier"][0]["cpu"] == {"model": "x"} and "plan" not in third["earlier"][0]


def test_threads_that_are_bound_to_a_core_are_seen():
    code = "import os; from lookahead_bench.provenance import bound_cores; os.sched_setaffinity(0, {%d}); print(bound_cores())"
    core = min(os.sched_getaffinity(0))
    told = subprocess.run([sys.executable, "-c", code % core], capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [core]


@pytest.mark.parametrize("load, loaded", [(2.5, False), (2.75, False), (2.8, True), (None, None)])
def test_more_than_the_run_itself_makes_is_a_loaded_machine(load, loaded):
    assert provenance.is_loaded(load, 2) is loaded


def test_what_cannot_be_found_out_is_none(monkeypatch):
    def broken(*_, **__):
        raise OSError("no such thing")

    monkeypatch.setattr(provenance.subprocess, "run", broken)
    monkeypatch.setattr(provenance.Path, "read_text", broken)
    monkeypatch.setattr(provenance, "distributions", broken)
    monkeypatch.setattr(os, "getloadavg", broken)
    monkeypatch.setattr(os, "getcwd", broken)
    monkeypatch.setattr(os, "sched_getaffinity", broken)
    monkeypatch.setattr(os, "sysconf", broken)
    record = provenance.collect(object(), object(), object())
    for name in ("git", "gpus", "load_average", "working_directory", "memory_bytes", "model", "data", "plan"):
        assert record[name] is None, name
    assert record["cpu"]["usable_cores"] is None
    assert set(record["versions"]) == {"python"}
