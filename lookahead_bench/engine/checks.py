"""What an engine can't serve is refused by name, before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

from lookahead_bench.engine.settings import PLUGIN_EXECUTORS, installed_vllm, is_plugin
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.records import EngineSpec

TESTED_VLLM = ("0.32.0", "0.31.0")
"""The releases that the plug-in was tested with. It rests on vLLM's internals, so others are refused."""

RECURRENT_MARKS = ("ssm", "mamba", "linear_attn", "linear_attention", "recurrent", "rwkv", "conv1d", "short_conv")
"""Parts of configuration keys and layer types that only models with a recurrent state have."""

UNSERVED_ARGUMENTS = {
    "enable_lora": False,
    "pipeline_parallel_size": 1,
    "tensor_parallel_size": 1,
    "data_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "kv_cache_dtype": "auto",
    "async_scheduling": False,
    "speculative_config": None,
    "worker_cls": "auto",
    "logits_processors": None,
}
"""vLLM's engine arguments that the plug-in can't serve, with the only value it takes."""

ALIBI_MODELS = ("bloom", "mpt", "baichuan", "jais")


def check_engine(spec: EngineSpec) -> None:
    """Refuse what can't work; nothing is loaded but the model's configuration.

    Raises:
        InputError: vLLM is not installed, or not in a tested release (plug-in), or the model has
            something that tree attention does not compute. One line.
    """
    _, release = installed_vllm()
    if spec.executor not in ("stock", *PLUGIN_EXECUTORS):
        raise ConfigError("engine.executor", spec.executor, "one of " + ", ".join(PLUGIN_EXECUTORS))
    if spec.extra:
        from vllm import EngineArgs

        known = {field.name for field in fields(EngineArgs)}
        for key in spec.extra:
            if key not in known:
                raise ConfigError(f"engine.extra.{key}", spec.extra[key], "left out: vLLM has no such engine argument")
    if (spec.speculative or {}).get("method") == "suffix" and not has_suffix_tree():
        raise InputError("vllm_suffix needs arctic_inference.suffix_decoding: build it with .venv/bin/python tools/suffix_tree.py")
    config = model_config(spec.model)
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and spec.max_model_len > longest:
        raise ConfigError("engine.max_model_len", spec.max_model_len, f"at most {longest} for model {spec.model}")
    if not is_plugin(spec):
        return
    for key, plain in UNSERVED_ARGUMENTS.items():
        if spec.extra.get(key, plain) != plain:
            raise ConfigError(f"engine.extra.{key}", spec.extra[key], f"{plain!r} with the plug-in, which has no support for it")
    if release.split("+")[0] not in TESTED_VLLM:
        raise InputError(
            f"vllm=={release}: the plug-in was tested with {', '.join(TESTED_VLLM)} only; "
            "install one of these, or compare stock engines alone"
        )
    if found := unsupported_model(config):
        raise InputError(f"model={spec.model}: the plug-in can't serve a model with {found}")


def has_suffix_tree() -> bool:
    """Whether what vLLM's suffix decoding imports is installed. The package may be there without this part of it."""
    return find_spec("arctic_inference") is not None and find_spec("arctic_inference.suffix_decoding") is not None


def model_config(model: str) -> Mapping[str, object]:
    """The model's ``config.json``, from its folder or from the hub's cache or the hub.

    Raises:
        InputError: it can't be had or is no JSON object.
    """
    path = Path(model) / "config.json"
    if not Path(model).is_dir():
        from huggingface_hub import hf_hub_download

        try:
            path = Path(hf_hub_download(model, "config.json"))
        except Exception as error:  # each version of the hub's client has errors of its own
            raise InputError(f"model={model}: its config.json can't be had ({' '.join(str(error).split())})") from error
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"model={model}: {path} can't be read ({error})") from error
    if not isinstance(config, dict):
        raise InputError(f"model={model}: {path} is not a JSON object")
    return config


def unsupported_model(config: Mapping[str, object]) -> str | None:
    """The first thing in a model's configuration that tree attention does not compute, in words.

    The attention layers check themselves once more when they are made; this is the same refusal
    before any weights are read.
    """
    keys = " ".join(config).lower()
    types = {str(kind) for kind in config.get("layer_types") or ()}
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    windowed = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    found = {
        "several modalities": "vision_config" in config or "audio_config" in config,
        "an encoder": bool(config.get("is_encoder_decoder")),
        "a recurrent state (Mamba, linear attention, hybrids)": any(
            mark in text for mark in RECURRENT_MARKS for text in (keys, " ".join(types).lower())
        ),
        "sliding-window attention": bool(windowed) or "sliding_attention" in types,
        "chunked attention": "chunked_attention" in types or config.get("attention_chunk_size") is not None,
        "multi-head latent attention": config.get("kv_lora_rank") is not None,
        "soft-capped attention logits": config.get("attn_logit_softcapping") is not None,
        "ALiBi": bool(config.get("alibi")) or config.get("model_type") in ALIBI_MODELS,
        "multi-dimensional rotary positions": isinstance(rope, dict) and "mrope_section" in rope,
        "attention sinks": config.get("model_type") == "gpt_oss",
    }
    return next((what for what, is_there in found.items() if is_there), None)
