"""From an EngineSpec to what vLLM is started with: engine arguments and environment.

Tested with vLLM 0.32.0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from lookahead_bench.records import EngineSpec

PLUGIN_EXECUTORS = ("tree",)
MIN_BATCHED_TOKENS = 2048


def is_plugin(spec: EngineSpec) -> bool:
    """Whether the engine verifies token trees; else it is vLLM as it is."""
    return spec.executor in PLUGIN_EXECUTORS


def engine_arguments(spec: EngineSpec) -> dict[str, object]:
    """Keyword arguments of ``vllm.EngineArgs``."""
    arguments: dict[str, object] = {
        "model": spec.model,
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        # A batch must have room for every request's whole draft.
        "max_num_batched_tokens": max(
            MIN_BATCHED_TOKENS, spec.max_model_len, spec.max_num_seqs * (1 + spec.max_drafts)
        ),
        "kv_cache_memory_bytes": spec.kv_cache_bytes,
        "enforce_eager": spec.enforce_eager,
        "enable_prefix_caching": spec.prefix_caching,
        "seed": spec.seed,
        "disable_log_stats": True,
        # The data sets' token ids are decoded greedily or as asked, never as the model's authors like it.
        "generation_config": "vllm",
    }
    if is_plugin(spec):
        arguments["worker_cls"] = "lookahead_bench.engine.worker.TreeCPUWorker"
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": "lookahead_bench.engine.runner.TreeDrafter",
            "num_speculative_tokens": max(1, spec.max_drafts),
        }
    elif spec.speculative is not None:
        arguments["speculative_config"] = dict(spec.speculative)
    return arguments | dict(spec.extra)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_environment(spec: EngineSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of an engine process.

    The engine runs inside one process, so that its steps can be timed from outside of it; Intel's
    OpenMP and tcmalloc are preloaded, as vLLM advises for CPU, and the OpenMP threads of an engine
    that waits go to sleep at once instead of taking cores from the one whose turn it is.
    """
    environment = dict(inherited)
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    environment.setdefault("KMP_BLOCKTIME", "1")
    threads = spec.threads or int(environment.get("OMP_NUM_THREADS") or usable_cores())
    environment["OMP_NUM_THREADS"] = str(threads)
    preload = environment.get("LD_PRELOAD", "").split(":")
    preload += [str(path) for path in preloads() if path.name not in environment.get("LD_PRELOAD", "")]
    environment["LD_PRELOAD"] = ":".join(filter(None, preload))
    return environment


def preloads() -> list[Path]:
    """The shared libraries that vLLM's CPU engine runs best with, as far as they are installed."""
    if not sys.platform.startswith("linux"):
        return []
    found = [Path(sys.prefix) / "lib" / "libiomp5.so"]
    for folder in map(Path, sys.path):
        found += sorted((folder / "vllm" / "libs").glob("libtcmalloc*.so*"))[:1]
    return [path for path in found if path.is_file()]
