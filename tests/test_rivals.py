"""Stock vLLM's own drafters on the real model: the plain output, and honest counts."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import yaml

from lookahead_bench.config import CONF
from lookahead_bench.engine import EngineProcess, check_engine
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.records import EngineSpec, Request
from tests.test_plan import plan_of

SUFFIX = yaml.safe_load((CONF / "strategy" / "vllm_suffix.yaml").read_text())
SUFFIX.pop("name")


@pytest.mark.unit
@pytest.mark.parametrize(
    "parameter, value",
    [("max_tree_depth", 0), ("max_cached_requests", -1), ("max_spec_factor", -0.5), ("min_token_prob", 1.5)],
)
def test_parameters_of_suffix_decoding_are_checked(parameter, value):
    key = f"methods.vllm_suffix.suffix_decoding_{parameter}"
    with pytest.raises(ConfigError, match=f"{key}={value}: must be "):
        plan_of("+sweep=strategies", "sweep.methods=[vllm_suffix]", f"{key}={value}")


@pytest.mark.unit
def test_suffix_decoding_without_its_tree_is_refused(monkeypatch):
    monkeypatch.setattr("lookahead_bench.engine.checks.find_spec", lambda name: None)
    with pytest.raises(InputError, match="vllm_suffix needs .*tools/suffix_tree.py"):
        check_engine(EngineSpec("m", "x", speculative=SUFFIX))


@pytest.mark.model
@pytest.mark.skipif(find_spec("arctic_inference") is None, reason="tools/suffix_tree.py was not run")
def test_suffix_decoding_gives_the_plain_output_and_keeps_nothing(model_path, tokenizer, tmp_path):
    ids = tuple(tokenizer("one two three four one two three four one two")["input_ids"])
    spec = EngineSpec(model_path, "test", enforce_eager=True, max_model_len=256)
    outputs = []
    for name, speculative in (("plain", None), ("suffix", SUFFIX)):
        with EngineProcess(replace(spec, speculative=speculative), tmp_path / name) as engine:
            outputs += [engine.generate([Request(f"{name} {i}", ids, 32)], concurrency=1)[0] for i in range(2)]
    plain, _, first, second = outputs
    assert first.token_ids == second.token_ids == plain.token_ids
    drafted = [[step.in_flight - 1 for step in output.steps] for output in (first, second)]
    assert sum(drafted[0]) > 0 and drafted[0] == drafted[1]
