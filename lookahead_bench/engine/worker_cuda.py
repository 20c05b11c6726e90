"""The worker that vLLM starts for the plug-in on an NVIDIA GPU (``worker_cls``).

Written against vLLM 0.32.0 and not yet run on a GPU. Relies on ``Worker._make_model_runner``, and
on ``register_backend`` letting a process choose what stands behind ``FLASH_ATTN``.
"""

from __future__ import annotations

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from lookahead_bench.engine.attention_cuda import copy_slots
from lookahead_bench.engine.compat import check_hooks
from lookahead_bench.engine.runner import TreeRunner
from lookahead_bench.engine.settings import plugin_settings

BACKENDS = {
    "tree": "lookahead_bench.engine.attention_cuda.TreeFlashBackend",
    "fork": "lookahead_bench.engine.attention_cuda.ForkFlashBackend",
}


class TreeGPUModelRunner(TreeRunner, GPUModelRunner):
    """vLLM's GPU runner (V1), verifying token trees."""

    copy_slots = staticmethod(copy_slots)


class TreeGPUWorker(Worker):
    """vLLM's GPU worker with the plug-in's runner and the executor's attention in place of its own."""

    def _make_model_runner(self) -> TreeGPUModelRunner:
        check_hooks(GPUModelRunner)
        register_backend(AttentionBackendEnum.FLASH_ATTN, BACKENDS[plugin_settings(self.vllm_config).executor])
        return TreeGPUModelRunner(self.vllm_config, self.device)
