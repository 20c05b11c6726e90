"""The roofline: arithmetic with known answers, and the command."""

from __future__ import annotations

import json

import pytest

from lookahead_bench.errors import InputError
from lookahead_bench.roofline.__main__ import main
from lookahead_bench.roofline.limits import Machine, Work, limit
from tests.example_results import BASELINES, store_run

CONFIG = {
    "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.unit
def test_the_work_of_a_model_is_what_its_sizes_say():
    work = Work.of(CONFIG)
    # Per layer: q and o 8x8, k and v 8x4, gate, up and down 8x16; and the head.
    assert work.weights == 2 * (2 * 64 + 2 * 32 + 3 * 128) + 800
    assert (work.kv_per_token, work.attention_per_pair) == (2 * 2 * 4, 4 * 2 * 8)
    with pytest.raises(InputError, match="^config.json: vocab_size must be there"):
        Work.of({key: value for key, value in CONFIG.items() if key != "vocab_size"})


@pytest.mark.unit
def test_a_step_is_bound_by_memory_until_arithmetic_takes_longer():
    work = Work(weights=1000, kv_per_token=10, attention_per_pair=0)
    machine = Machine(bytes_per_second=4000.0, operations_per_second=8000.0)
    few, many = (limit(work, machine, 4, 0, size) for size in (2, 8))
    assert (few.memory_seconds, few.compute_seconds, few.seconds) == (1.0, 0.5, 1.0)
    assert many.seconds == many.compute_seconds == 2.0
    assert limit(work, machine, 2, 100, 1).memory_seconds == pytest.approx(2 * (1000 + 1000) / 4000)


@pytest.mark.model
def test_the_work_of_the_default_model_is_its_own(model_path):
    from pathlib import Path

    from safetensors import safe_open

    work = Work.of(json.loads((Path(model_path) / "config.json").read_text()))
    with safe_open(next(Path(model_path).glob("*.safetensors")), "np") as tensors:
        shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys() if "lm_head" not in name]
    assert work.weights == sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)


@pytest.mark.model
def test_the_command_prints_limits_and_stored_steps(tmp_path, model_path, capsys):
    run = store_run(tmp_path, methods=BASELINES, prompts=2).folder
    assert main([str(run), "--context", "128"]) == 0
    shown = capsys.readouterr().out
    assert "GB/s of weights read" in shown and "step / limit" in shown and "humaneval, autoregressive" in shown
    for arguments, said in [
        ([str(run), "--dtype", "bfloat16"], "--dtype=bfloat16: must be float32"),
        ([str(tmp_path / "none")], "must be a folder with results"),
        (["--context", "-1"], "--context=-1: must be 0 or more"),
    ]:
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
