"""What a step costs by its nodes in flight, as a drafting method needs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from lookahead_bench.errors import ConfigError

DEFAULT_COST = [[1, 1.0], [7, 1.1], [14, 1.42], [21, 1.75], [28, 2.1], [34, 2.4]]
"""Nodes in flight and the cost of a step with them, relative to one with the root alone.

As measured for the tree executor with a model of 135 M parameters in float32 on two CPU cores.
"""


class CostCurve:
    """The cost of a step by its nodes in flight, 1 to ``size``, from a few points.

    Attributes:
        cost: per number of nodes its cost; straight between points, beyond the last as before it.
        least: per number of nodes the least cost of a further one, whatever number is added.
    """

    __slots__ = ("cost", "least")

    def __init__(self, points: Sequence[Sequence[float]], size: int) -> None:
        nodes, costs = np.array(points, dtype=float).T
        at = np.arange(size + 2)
        curve = np.interp(at, nodes, costs)
        if len(nodes) > 1:
            slope = (costs[-1] - costs[-2]) / (nodes[-1] - nodes[-2])
            curve += np.maximum(at - nodes[-1], 0) * slope
        self.cost: list[float] = curve.tolist()
        self.least = [float(((curve[n + 1 :] - curve[n]) / (at[n + 1 :] - n)).min()) for n in range(size + 1)]


@lru_cache(maxsize=64)
def shared_curve(points: tuple[tuple[float, float], ...], size: int) -> CostCurve:
    """The curve through checked points; requests with equal parameters share one."""
    return CostCurve(points, size)


def check_cost(cost: object) -> tuple[tuple[float, float], ...]:
    """The points of ``strategy.cost``.

    Raises:
        ConfigError: they are not a curve.
    """
    allowed = "auto, default, or pairs such as [[1,1.0],[8,1.25]]: growing nodes from 1 on, with costs above 0 that do not fall"
    try:
        points = tuple((float(nodes), float(value)) for nodes, value in cost)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ConfigError("strategy.cost", cost, allowed) from error
    grows = all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(points))
    if not points or points[0][0] != 1 or not points[0][1] > 0 or not grows or not np.isfinite(points).all():
        raise ConfigError("strategy.cost", cost, allowed)
    return points
