"""Forked rows over vLLM's unmodified CPU attention; only the metadata builder is another.

Tested with vLLM 0.32.0. Relies on ``CPUAttentionMetadataBuilder.build``.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionMetadataBuilder

from lookahead_bench.engine.executors import Fork
from lookahead_bench.engine.forks import forked


class ForkMetadataBuilder(CPUAttentionMetadataBuilder):
    """vLLM's own builder over forked rows."""

    forks: Sequence[Fork] = ()
    """All rows of the coming batch, in order, set before ``build``."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return super().build(common_prefix_len, forked(common_attn_metadata, self.forks), fast_build)


class ForkAttentionBackend(CPUAttentionBackend):
    """vLLM's CPU attention; only its metadata builder is another."""

    @staticmethod
    def get_builder_cls() -> type[ForkMetadataBuilder]:
        return ForkMetadataBuilder
