"""Which curve a method that takes one gets: words and files of ``strategy.cost`` become numbers before cells are made.

| strategy.cost | the curve |
|---|---|
| auto, null | measured: by +sweep=cost, with the same model, dtype, executor, threads and kernels on this machine; else default |
| measured | measured, or the run is refused |
| default | the method's own |
| a file | that file's, as +sweep=cost stores it, whatever it was measured on |
| pairs | these |

So the identity of a cell has the numbers themselves, and the results say them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lookahead_bench.cost.library import Points, find_curve, read_curve
from lookahead_bench.errors import ConfigError
from lookahead_bench.records import EngineSpec, StrategySpec
from lookahead_bench.strategy import find_strategy

if TYPE_CHECKING:
    from lookahead_bench.methods import Method
    from lookahead_bench.models import ModelSource

PARAMETER = "cost"
AUTO, MEASURED, DEFAULT = "auto", "measured", "default"
CONTEXT = 512
"""Tokens of context whose curve is taken: the measured one nearest to it."""


def _is_looked_up(spec: StrategySpec) -> bool:
    """Whether ``cost`` is a word or a file, and means a curve: a class that takes one has ``DEFAULT_COST``."""
    given = PARAMETER in spec.parameters and isinstance(spec.parameters[PARAMETER], (str, type(None)))
    return given and hasattr(find_strategy(spec.name), "DEFAULT_COST")


def checkable(spec: StrategySpec, key: Callable[[str], str]) -> StrategySpec:
    """The method as its class can check it, with its own curve in place of one that is looked up later.

    Raises:
        ConfigError: a text that is no word and no file.
    """
    if not _is_looked_up(spec):
        return spec
    cost = spec.parameters[PARAMETER]
    if cost not in (None, AUTO, MEASURED, DEFAULT) and not Path(str(cost)).expanduser().is_file():
        allowed = "auto, measured, default, a file of curves that exists, or pairs such as [[1,1.0],[8,1.25]]"
        raise ConfigError(key(PARAMETER), cost, allowed)
    return _with(spec, find_strategy(spec.name).DEFAULT_COST)


def choose_curves(
    methods: Iterable[Method], engine_of: Callable[[Method], EngineSpec], model: ModelSource, results_dir: Path
) -> tuple[tuple[Method, ...], tuple[str, ...]]:
    """The methods with numbers for curves, each once, and a line for each choice that was made for the user.

    Args:
        engine_of: what a method's engine is started with.
        results_dir: where stored curves are.

    Raises:
        ConfigError: ``measured``, and there is no such curve; or two variants come to the same.
        InputError: a file without curves.
    """
    chosen: dict[str, Method] = {}
    notes: dict[str, None] = {}
    for method in methods:
        if not method.is_stock and _is_looked_up(method.spec):
            points, note = _curve(method, engine_of(method), model, results_dir)
            method = replace(method, spec=_with(method.spec, points))
            notes[note] = None
        identity = json.dumps([method.spec.name, dict(method.spec.parameters), method.executor], sort_keys=True, default=str)
        same = chosen.setdefault(identity, method)
        if same.title != method.title and same.title and method.title:
            raise ConfigError(f"sweep.variants.{method.title}", {}, f"other than sweep.variants.{same.title}")
        if method.title:
            chosen[identity] = method
    return tuple(chosen.values()), tuple(notes)


def _curve(method: Method, engine: EngineSpec, model: ModelSource, results_dir: Path) -> tuple[Points, str]:
    """The curve that a word or a file stands for, and where it comes from, in words."""
    word = str(method.spec.parameters[PARAMETER] or AUTO)
    label = f"{method.spec.name} ({method.executor}, {engine.dtype})"
    if word not in (AUTO, MEASURED, DEFAULT):
        path = Path(word).expanduser()
        return read_curve(path, CONTEXT), f"{label}: step costs from {path}"
    found = find_curve(engine, model, results_dir) if word != DEFAULT else None
    if found is not None:
        return read_curve(found, CONTEXT), f"{label}: step costs measured here, {found}"
    if word == MEASURED:
        raise ConfigError(
            f"strategy.{PARAMETER}",
            word,
            f"measured first, with +sweep=cost, the same model, engine settings and results_dir: for {label} there is no curve",
        )
    why = "" if word == DEFAULT else "; +sweep=cost measures those of this machine"
    return find_strategy(method.spec.name).DEFAULT_COST, f"{label}: default step costs{why}"


def _with(spec: StrategySpec, points: Points) -> StrategySpec:
    return replace(spec, parameters={**spec.parameters, PARAMETER: [list(point) for point in points]})
