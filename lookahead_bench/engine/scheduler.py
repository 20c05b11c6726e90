"""vLLM's scheduler, with KV blocks set aside for forked rows.

Tested with vLLM 0.32.0. Relies on ``Scheduler.kv_cache_manager.block_pool`` handing out blocks in
ascending order from block 1 on while nothing runs yet.
"""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler

from lookahead_bench.engine.settings import plugin_settings


def scratch_blocks(count: int) -> range:
    """Ids of the blocks that are set aside: the first ones of the pool (block 0 is vLLM's null block)."""
    return range(1, 1 + count)


class ForkScheduler(Scheduler):
    """Takes the scratch blocks out of the pool before it schedules anything.

    Raises:
        ValueError: what is left could not hold one request of ``max_model_len`` tokens.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        pool = self.kv_cache_manager.block_pool
        count = plugin_settings(self.vllm_config).scratch_blocks(self.block_size)
        left = pool.get_num_free_blocks() - count
        needed = -(-self.max_model_len // self.block_size)
        if left < needed:
            raise ValueError(
                f"engine.kv_cache_gib: the KV cache has {pool.get_num_free_blocks()} blocks of {self.block_size} "
                f"tokens; executor 'fork' sets aside {count} and one request may need {needed}: make the cache "
                "larger, or engine.max_num_seqs, engine.max_paths or engine.max_model_len smaller"
            )
        taken = [block.block_id for block in pool.get_new_blocks(count)]
        if taken != list(scratch_blocks(count)):
            raise RuntimeError(f"vLLM's block pool gave out {taken[:3]}... where 1, 2, 3... were expected")
