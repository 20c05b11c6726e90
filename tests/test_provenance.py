from __future__ import annotations

import json
import os

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
