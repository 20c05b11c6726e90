"""From a checked configuration to the methods of a sweep: the baselines, then what is swept."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from lookahead_bench.checks import check_choice, is_import_path
from lookahead_bench.config import Config
from lookahead_bench.cost.choose import checkable
from lookahead_bench.drafters import DRAFT_MODEL
from lookahead_bench.errors import ConfigError, check_int
from lookahead_bench.pools import asks_for_pool
from lookahead_bench.records import StrategySpec
from lookahead_bench.strategy import make_strategy, strategies

STOCK_EXECUTOR = "stock"
_STOCK_KINDS = {
    "vllm_ngram": ("ngram",),
    "vllm_suffix": ("suffix",),
    "vllm_draft_model": ("draft_model",),
    "vllm_eagle": ("eagle", "eagle3"),
}
"""vLLM's own methods that a name may stand for, so that no row has another's numbers under its name."""
_STOCK_SIZES = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_MAX_STOCK_SIZE = 512
_STOCK_RANGES = {
    "suffix_decoding_max_tree_depth": (1, _MAX_STOCK_SIZE),
    "suffix_decoding_max_cached_requests": (0, 10**6),
}
_STOCK_FACTORS = {"suffix_decoding_max_spec_factor": 100.0, "suffix_decoding_min_token_prob": 1.0}
"""Numbers from 0, with the highest value of each."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way of decoding, as the cells of all data sets have it.

    Attributes:
        spec: its name and checked parameters.
        executor: ``stock``, ``tree`` or ``fork``.
        title: what the sweep calls it; "" leaves that to its parameters.
    """

    spec: StrategySpec
    executor: str
    title: str = ""

    @property
    def is_stock(self) -> bool:
        """Whether it is the stock engine's own."""
        return self.executor == STOCK_EXECUTOR

    @property
    def max_drafts(self) -> int:
        """Most drafted tokens of a step that the plug-in must take for it."""
        return 0 if self.is_stock else make_strategy(self.spec.name, **self.spec.parameters).max_drafts


def planned_methods(config: Config) -> tuple[Method, ...]:
    """The baselines, then the methods of the sweep, each with checked parameters and each once.

    Raises:
        ConfigError: no such method, no such parameter, a value out of range, or two variants that are the same.
    """
    methods = [_method(config, config.method(name, "baselines")) for name in config.baselines]
    methods += [
        replace(method, executor=executor)
        for method in _swept(config)
        for executor in ([STOCK_EXECUTOR] if method.is_stock else config.sweep.executors or [method.executor])
    ]
    unique: dict[str, Method] = {}
    for method in methods:
        identity = json.dumps([method.spec.name, dict(method.spec.parameters), method.executor], sort_keys=True)
        same = unique.setdefault(identity, method)
        if same.title != method.title and same.title:
            raise ConfigError(f"sweep.variants.{method.title}", {}, f"other than sweep.variants.{same.title}")
        unique[identity] = method
    return tuple(unique.values())


def shares_pool(spec: StrategySpec) -> bool:
    """Whether outputs of earlier requests serve later ones, with these checked parameters."""
    if not is_stock(spec.name):
        return asks_for_pool(spec.name, spec.parameters)
    # Left out, vLLM's default holds, which is 10,000.
    cached = spec.parameters.get("suffix_decoding_max_cached_requests")
    return spec.parameters.get("method") == "suffix" and cached != 0


def is_stock(name: str) -> bool:
    """Whether a method is the stock engine's own."""
    return name.startswith("vllm") and not is_import_path(name)


def _swept(config: Config) -> Iterable[Method]:
    sweep = config.sweep
    if sweep.compares_methods:
        names = sweep.methods
        if names is None:
            registered = strategies()
            names = tuple(name for name in config.methods if name in registered)
        for name in names:
            yield _method(config, config.method(name, "sweep.methods"))
        return
    assert sweep.strategy is not None
    for title, changes in sweep.variants.items():
        key = f"sweep.variants.{title}"
        own = {parameter: value for parameter, value in changes.items() if parameter not in ("name", "executor")}
        base = config.method(str(changes.get("name", sweep.strategy)), f"{key}.name")
        method = _method(config, _changed(base, own), lambda parameter: f"{key}.{parameter}", own)
        if method.is_stock and "executor" in changes:
            raise ConfigError(f"{key}.executor", changes["executor"], f"left out: {base.name} is the stock engine's own")
        yield replace(method, executor=str(changes.get("executor", method.executor)), title=title)
    for name, axes in sweep.grids.items():
        yield from _grid(config, config.method(name, "sweep.grids"), axes, f"sweep.grids.{name}")
    if not sweep.variants and not sweep.grids:
        yield from _grid(config, config.method(sweep.strategy, "sweep.strategy"), sweep.axes, "sweep")


def _grid(
    config: Config, base: StrategySpec, axes: Mapping[str, tuple[object, ...]], prefix: str
) -> Iterable[Method]:
    for values in itertools.product(*axes.values()):
        swept = dict(zip(axes, values))
        yield _method(config, _changed(base, swept), lambda parameter: f"{prefix}.{parameter}", swept)


def _changed(base: StrategySpec, changes: dict[str, object]) -> StrategySpec:
    return StrategySpec(base.name, {**base.parameters, **changes})


def _method(
    config: Config,
    spec: StrategySpec,
    swept_key: Callable[[str], str] = str,
    swept: Iterable[str] = (),
) -> Method:
    """A method with checked parameters; a fault names the key as the user types it.

    Args:
        swept_key: the key of a parameter that the sweep sets.
        swept: those parameters.
    """

    def key(parameter: str) -> str:
        if parameter in swept:
            return swept_key(parameter)
        return f"strategy.{parameter}" if spec.name == config.strategy.name else f"methods.{spec.name}.{parameter}"

    if is_stock(spec.name):
        _check_stock(spec, key)
        return Method(spec, STOCK_EXECUTOR)
    try:
        # A method checks its parameters where it is made.
        make_strategy(spec.name, **checkable(spec, key).parameters)
    except ConfigError as error:
        group, _, parameter = error.key.partition(".")
        if group != "strategy" or not parameter:
            raise
        raise ConfigError(key(parameter), error.value, error.allowed) from error
    return Method(spec, config.engine.executor)


def _check_stock(spec: StrategySpec, key: Callable[[str], str]) -> None:
    if spec.name in _STOCK_KINDS:
        check_choice(key("method"), spec.parameters.get("method"), _STOCK_KINDS[spec.name])
    for parameter, value in spec.parameters.items():
        if parameter == DRAFT_MODEL and not (isinstance(value, str) and value):
            raise ConfigError(key(parameter), value, "what drafts: a name in conf/model, a folder or a hub id")
        if parameter in _STOCK_SIZES:
            check_int(key(parameter), value, 1, _MAX_STOCK_SIZE)
        elif parameter in _STOCK_RANGES:
            check_int(key(parameter), value, *_STOCK_RANGES[parameter])
        elif parameter in _STOCK_FACTORS:
            highest = _STOCK_FACTORS[parameter]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= highest:
                raise ConfigError(key(parameter), value, f"a number from 0 to {highest:g}")
    low, high = (spec.parameters.get(f"prompt_lookup_{end}") for end in ("min", "max"))
    if low is not None and high is not None and low > high:
        raise ConfigError(key("prompt_lookup_min"), low, f"at most {key('prompt_lookup_max')}={high}")
