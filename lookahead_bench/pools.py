"""What finished requests of an engine leave for later ones, where a method's parameters ask for that by name.

By default nothing is shared. A strategy that can share has `SharesPool`'s members; a request whose StrategySpec
names a ``pool`` drafts from the outputs of earlier requests with an equal spec, and of no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol, runtime_checkable

from lookahead_bench.records import StrategySpec
from lookahead_bench.strategy import Strategy, make_strategy


class Pool(Protocol):
    """Bounded memory of outputs."""

    def add(self, output: Sequence[int]) -> None:
        """Keep the token ids of a finished request's output."""


@runtime_checkable
class SharesPool(Protocol):
    """A strategy that can draft from earlier outputs.

    Attributes:
        shared_pool: whether its parameters ask for it.
    """

    shared_pool: bool

    def make_pool(self) -> Pool:
        """An empty pool."""

    def share(self, pool: Pool) -> None:
        """Draft from ``pool`` as well; called before ``begin``."""


def asks_for_pool(name: str, parameters: Mapping[str, object]) -> bool:
    """Whether a method with these parameters wants to share; raises ConfigError as `make_strategy` does."""
    method = make_strategy(name, **parameters)
    return isinstance(method, SharesPool) and method.shared_pool


class Pools:
    """The pools of one engine."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def strategy(self, spec: StrategySpec) -> Strategy:
        """A strategy object for a request, with the pool that its spec names.

        Raises:
            ConfigError: as `make_strategy`.
        """
        method = make_strategy(spec.name, **spec.parameters)
        if (pool := self._of(spec, method)) is not None:
            method.share(pool)
        return method

    def add(self, spec: StrategySpec, output: Sequence[int]) -> None:
        """Keep the output of a finished request; nothing happens if its spec names no pool."""
        if spec.pool is not None:
            pool = self._of(spec, make_strategy(spec.name, **spec.parameters))
            if pool is not None:
                pool.add(output)

    def _of(self, spec: StrategySpec, method: Strategy) -> Pool | None:
        if spec.pool is None or not isinstance(method, SharesPool) or not method.shared_pool:
            return None
        key = json.dumps(asdict(spec), sort_keys=True, default=str)
        if key not in self._pools:
            self._pools[key] = method.make_pool()
        return self._pools[key]
