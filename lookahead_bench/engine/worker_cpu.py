"""The worker that vLLM starts for the plug-in on CPU (``worker_cls``).

Tested with vLLM 0.32.0. Relies on ``CPUWorker.init_device`` setting ``model_runner``, and on
``register_backend`` letting a process choose what stands behind ``CPU_ATTN``, and on
``CPUModelRunner.load_model`` processing all weights.
"""

from __future__ import annotations

from contextlib import nullcontext

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from lookahead_bench.engine import attention_cpu
from lookahead_bench.engine.compat import check_hooks
from lookahead_bench.engine.native import attention as attention_native
from lookahead_bench.engine.native.library import fits
from lookahead_bench.engine.native.linear import native_linear
from lookahead_bench.engine.native.logits import largest
from lookahead_bench.engine.runner import TreeRunner
from lookahead_bench.engine.settings import plugin_settings

FORK_BACKEND = "lookahead_bench.engine.attention_fork.ForkAttentionBackend"
TREE_BACKEND = "lookahead_bench.engine.attention_cpu.TreeAttentionBackend"
NATIVE_TREE_BACKEND = "lookahead_bench.engine.native.attention.NativeAttentionBackend"


def attends_natively(vllm_config) -> bool:
    """Whether the trees of this engine go through the project's own attention kernel."""
    settings = plugin_settings(vllm_config)
    return settings.native_kernels and settings.executor == "tree" and fits(vllm_config.model_config.dtype)


def backend(vllm_config) -> str:
    """The attention of this engine, by its path."""
    if plugin_settings(vllm_config).executor == "fork":
        return FORK_BACKEND
    return NATIVE_TREE_BACKEND if attends_natively(vllm_config) else TREE_BACKEND


class TreeCPUModelRunner(TreeRunner, CPUModelRunner):
    """vLLM's CPU runner, verifying token trees."""

    def __init__(self, vllm_config, device) -> None:
        super().__init__(vllm_config, device)
        native = attends_natively(vllm_config)
        self.copy_slots = attention_native.copy_slots if native else attention_cpu.copy_slots
        if plugin_settings(vllm_config).native_kernels and fits(vllm_config.model_config.dtype):
            self.largest = largest

    def load_model(self, *args, **kwargs) -> None:
        with native_linear() if plugin_settings(self.vllm_config).native_kernels else nullcontext():
            super().load_model(*args, **kwargs)


class TreeCPUWorker(CPUWorker):
    """vLLM's CPU worker with the plug-in's runner and the executor's attention in place of its own."""

    def init_device(self) -> None:
        check_hooks(CPUModelRunner)
        register_backend(AttentionBackendEnum.CPU_ATTN, backend(self.vllm_config))
        super().init_device()
        self.model_runner = TreeCPUModelRunner(self.vllm_config, self.device)
