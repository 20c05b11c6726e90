"""How the trees of a batch reach vLLM's attention, and how an accepted path becomes context.

Tested with vLLM 0.32.0. An executor works on the batch that the runner has prepared: positions and
KV slots as the scheduler gave them out, drafted tokens behind the last accepted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from lookahead_bench.engine.layout import Layout, fork_layout, tree_layout
from lookahead_bench.tree import TokenTree

if TYPE_CHECKING:
    from lookahead_bench.engine.runner import TreeRunner


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of the batch.

    Attributes:
        request_id: vLLM's own id of it.
        start: its first token in the batch.
        scheduled: how many tokens the pass computes for it.
        context: tokens whose KV is there before the pass.
        layout: what its tokens are; None without a draft in flight (prompts, foreign sampling).
        nodes: nodes whose logits were computed, ascending; (0,) without a draft.
        first_logit: where its logits begin.
    """

    request_id: str
    start: int
    scheduled: int
    context: int
    layout: Layout | None
    nodes: tuple[int, ...]
    first_logit: int


class Executor(Protocol):
    """One way of computing trees."""

    def layout(self, tree: TokenTree) -> Layout:
        """The tokens that a draft becomes."""

    def place(self, rows: Sequence[Row]) -> None:
        """Make the prepared batch attend as the trees ask; called before every pass."""

    def commit(self, row: Row, path: Sequence[int]) -> None:
        """Bring the KV of an accepted path (nodes, not empty) right behind the context."""


def metadata_builders(runner: TreeRunner):
    """All attention metadata builders of a runner."""
    return [group.get_metadata_builder(0) for groups in runner.attn_groups for group in groups]


class TreeExecutor:
    """One row per request, the tree's mask inside the attention."""

    def __init__(self, runner: TreeRunner) -> None:
        self._runner = runner

    def layout(self, tree: TokenTree) -> Layout:
        return tree_layout(tree)

    def place(self, rows: Sequence[Row]) -> None:
        for builder in metadata_builders(self._runner):
            builder.trees = tuple(row.layout.tree if row.layout is not None else None for row in rows)

    def commit(self, row: Row, path: Sequence[int]) -> None:
        moved = [(node, depth) for depth, node in enumerate(path, 1) if node != depth]
        if not moved:
            return
        slots = self._runner.slots(row)
        sources = slots[[node for node, _ in moved]].long()
        targets = slots[[depth for _, depth in moved]].long()
        self._runner.copy_slots(self._runner.kv_caches, sources, targets)


@dataclass(frozen=True, slots=True)
class Fork:
    """One row of attention below a request: where it attends, and which KV blocks are its own.

    Attributes:
        request: index of the request in the batch.
        start, stop: its tokens in the batch.
        length: tokens that its last query sees: context and own.
        blocks: scratch blocks in place of the request's from block ``first_block`` on; none for
            rows that write to the request's own blocks.
        first_block: index, in the request's block table, of the block that the context ends in.
    """

    request: int
    start: int
    stop: int
    length: int
    blocks: tuple[int, ...] = ()
    first_block: int = 0


class ForkExecutor:
    """Each path is a child row: the parent's full KV blocks, and scratch blocks of its own.

    A child's first scratch block starts as a copy of the parent's last partial block. The first
    path needs none: it writes where the parent would. An accepted path that is another child's is
    committed by copying its scratch blocks back, whole.

    Args:
        runner: the runner.
        scratch: ids of KV blocks that the scheduler never hands out.
        max_paths: most rows per request.
        block_size: tokens of a KV block.
    """

    def __init__(self, runner: TreeRunner, scratch: Sequence[int], max_paths: int, block_size: int) -> None:
        self._runner = runner
        self._scratch = tuple(scratch)
        self._max_paths = max_paths
        self._block_size = block_size
        self._forks: dict[str, tuple[Fork, ...]] = {}

    def layout(self, tree: TokenTree) -> Layout:
        return fork_layout(tree, self._max_paths)

    def place(self, rows: Sequence[Row]) -> None:
        free = iter(self._scratch)
        self._forks = {row.request_id: self._split(index, row, free) for index, row in enumerate(rows)}
        copies = [
            (self._blocks(fork.request)[fork.first_block], fork.blocks[0])
            for forks in self._forks.values()
            for fork in forks
            if fork.blocks and (fork.length - (fork.stop - fork.start)) % self._block_size
        ]
        self._copy_blocks(copies)
        for builder in metadata_builders(self._runner):
            builder.forks = tuple(fork for forks in self._forks.values() for fork in forks)

    def _split(self, request: int, row: Row, free) -> tuple[Fork, ...]:
        """The row's forks; gives each child after the first its scratch blocks and slots."""
        if row.layout is None:
            return (Fork(request, row.start, row.start + row.scheduled, row.context + row.scheduled),)
        forks = []
        size = self._block_size
        first = row.context // size
        slots = self._runner.slots(row)
        for number, fork in enumerate(row.layout.forks):
            length = row.context + len(fork)
            blocks: tuple[int, ...] = ()
            if number:
                blocks = tuple(next(free) for _ in range((length - 1) // size - first + 1))
                positions = torch.arange(row.context, length)
                own = torch.tensor(blocks)[positions // size - first]
                slots[fork.start : fork.stop] = (own * size + positions % size).to(slots.device, slots.dtype)
            forks.append(Fork(request, row.start + fork.start, row.start + fork.stop, length, blocks, first))
        return tuple(forks)

    def commit(self, row: Row, path: Sequence[int]) -> None:
        winner = row.layout.forks.index(row.layout.fork_of(path))
        fork = self._forks[row.request_id][winner]
        if not fork.blocks:
            return
        used = (row.context + len(path)) // self._block_size - fork.first_block + 1
        own = self._blocks(fork.request)[fork.first_block :]
        self._copy_blocks(list(zip(fork.blocks[:used], own)))

    def _blocks(self, request: int) -> list[int]:
        return self._runner.input_batch.block_table[0].block_table.np[request].tolist()

    def _copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks (from, to) in every layer, whatever their inner layout."""
        if not copies:
            return
        sources = torch.tensor([source for source, _ in copies], device=self._runner.device)
        targets = torch.tensor([target for _, target in copies], device=self._runner.device)
        for kv_cache in self._runner.kv_caches:
            kv_cache[targets] = kv_cache[sources]
