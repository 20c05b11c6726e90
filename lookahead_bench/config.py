"""The typed configuration of a run, made from what Hydra composed; every key is checked.

Nothing here touches torch, vLLM, a model or a data set: what can be refused at once is refused at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lookahead_bench.checks import check_folder, check_keys, check_method, check_name, is_import_path
from lookahead_bench.errors import ConfigError, InputError, check_int
from lookahead_bench.records import StrategySpec
from lookahead_bench.settings import DecodeConfig, EngineConfig, QualityConfig, RunConfig, SweepConfig, TrackingConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
"""The folder of Hydra groups."""

STOCK_METHODS = ("vllm", "vllm_control")
"""Plain decoding by the stock engine; every other name beginning with ``vllm`` is a drafter of its own."""

MAX_SWEEP_CELLS = 1000
MAX_PROMPTS = 10**9
_NOT_SWEPT = ("name", "strategy", "methods", "variants", "grids", "executor", "concurrency", "baselines")
"""Keys of a sweep that are no parameter of its method."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """All of one run's configuration, checked.

    Attributes:
        model: the group's keys as they are, for ``models.resolve_model``.
        dataset: the group's keys as they are, for ``data.load_prompts``.
        strategy: the chosen method.
        methods: every method by name, with the parameters it is compared with.
        baselines: names of methods, ``vllm`` first.
        resolved: the whole configuration with nothing left to interpolate.
    """

    model: Mapping[str, Any]
    dataset: Mapping[str, Any]
    strategy: StrategySpec
    methods: Mapping[str, StrategySpec]
    baselines: tuple[str, ...]
    sweep: SweepConfig
    engine: EngineConfig
    decode: DecodeConfig
    run: RunConfig
    quality: QualityConfig
    tracking: TrackingConfig
    results_dir: Path
    resolved: Mapping[str, Any]

    def __post_init__(self) -> None:
        if max(self.concurrency) > self.engine.max_num_seqs:
            key = "sweep.concurrency" if self.sweep.concurrency else "run.concurrency"
            raise ConfigError(
                key, max(self.concurrency), f"at most engine.max_num_seqs={self.engine.max_num_seqs}"
            )
        if self.decode.max_new_tokens >= self.engine.max_model_len:
            raise ConfigError(
                "decode.max_new_tokens",
                self.decode.max_new_tokens,
                f"less than engine.max_model_len={self.engine.max_model_len}",
            )

    @property
    def concurrency(self) -> tuple[int, ...]:
        """How many requests are in flight at once, each number with cells of its own."""
        return self.sweep.concurrency or (self.run.concurrency,)

    def method(self, name: str, key: str) -> StrategySpec:
        """The method's parameters: those of ``strategy.*`` if it is the chosen one, else ``methods.*``.

        A ``module:Class`` that is not the chosen one has none but its own defaults.

        Raises:
            ConfigError: no such method; ``key`` is where its name was found.
        """
        if name == self.strategy.name:
            return self.strategy
        if is_import_path(name):
            return StrategySpec(name, {})
        if name not in self.methods:
            raise ConfigError(key, name, "one of " + ", ".join(self.methods))
        return self.methods[name]


def options(group: str) -> tuple[str, ...]:
    """What can be chosen in a group of the conf folder, sorted."""
    return tuple(sorted(path.stem for path in (CONF / group).glob("*.yaml")))


def register_methods() -> None:
    """Make the group ``methods``: ``methods.NAME`` holds the keys of ``conf/strategy/NAME.yaml`` for all NAMEs.

    It is made, not written, so that a new method is one file of code and one of configuration.
    """
    defaults = [{f"/strategy@{name}": name} for name in options("strategy")]
    ConfigStore.instance().store(group="methods", name="all", node={"defaults": defaults})


def from_hydra(config: DictConfig) -> Config:
    """Check every key of a composed configuration.

    Raises:
        ConfigError: a key is unknown or missing, or its value is not allowed.
    """
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        raise InputError(f"{key}: {str(error).splitlines()[0]}") from error
    assert isinstance(resolved, dict)
    known = [field.name for field in dataclasses.fields(Config) if field.name != "resolved"]
    for key in ("model", "strategy"):
        if not isinstance(resolved.get(key), dict) or not resolved[key]:
            raise ConfigError(key, resolved.get(key) or [], "one of " + ", ".join(options(key)))
    check_keys("", resolved, known)
    _check_dataset(resolved["dataset"])
    strategy = _method("strategy", resolved["strategy"])
    return Config(
        model=resolved["model"],
        dataset=resolved["dataset"],
        strategy=strategy,
        methods={
            name: _method(f"methods.{name}", node) for name, node in sorted(resolved["methods"].items())
        },
        baselines=_baselines(resolved),
        sweep=_sweep(resolved["sweep"], strategy.name),
        engine=_build(EngineConfig, "engine", resolved["engine"]),
        decode=_build(DecodeConfig, "decode", resolved["decode"]),
        run=_build(RunConfig, "run", resolved["run"]),
        quality=_build(QualityConfig, "quality", resolved["quality"]),
        tracking=_build(TrackingConfig, "tracking", resolved["tracking"]),
        results_dir=check_folder("results_dir", resolved["results_dir"]),
        resolved=resolved,
    )


def _method(key: str, node: Any) -> StrategySpec:
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        raise ConfigError(key, node, "a method's keys with its name, as in conf/strategy")
    check_method(f"{key}.name", node["name"])
    parameters = {parameter: value for parameter, value in node.items() if parameter != "name"}
    return StrategySpec(node["name"], parameters)


def _check_dataset(node: Any) -> None:
    if not isinstance(node, dict) or not node.get("sources"):
        raise ConfigError("dataset", [], "one or more of " + ", ".join(options("dataset")))
    check_keys("dataset.", node, ("sources", "limit", "path"))
    if node["limit"] is not None:
        check_int("dataset.limit", node["limit"], 1, MAX_PROMPTS)


def _sweep(node: Any, strategy: str) -> SweepConfig:
    if node is None:
        return SweepConfig("single", strategy, {})
    if not isinstance(node, dict) or "name" not in node:
        raise ConfigError("sweep", node, "chosen with +sweep=NAME, NAME one of " + ", ".join(options("sweep")))
    axes = {key: _values(f"sweep.{key}", value) for key, value in node.items() if key not in _NOT_SWEPT}
    axes = {key: values for key, values in axes.items() if values is not None}
    name = check_name("sweep.name", node["name"])
    executors = _names("sweep.executor", _values("sweep.executor", node.get("executor")) or ())
    several = {"executors": executors, "concurrency": _values("sweep.concurrency", node.get("concurrency")) or ()}
    for other in ("methods", "variants", "grids"):
        if other in node and axes:
            key = next(iter(axes))
            raise ConfigError(f"sweep.{key}", list(axes[key]), f"left out where sweep.{other} is given")
    if "methods" in node:
        methods = _values("sweep.methods", node["methods"])
        names = None if methods is None else _names("sweep.methods", methods)
        return SweepConfig(name, None, {}, True, names, **several)
    strategy = check_method("sweep.strategy", node.get("strategy", strategy))
    if "variants" in node:
        return SweepConfig(name, strategy, {}, variants=_variants(node["variants"]), **several)
    if "grids" in node:
        return SweepConfig(name, strategy, {}, grids=_grids(node["grids"]), **several)
    if math.prod(len(values) for values in axes.values()) > MAX_SWEEP_CELLS:
        raise InputError(f"sweep: its lists must make at most {MAX_SWEEP_CELLS} combinations")
    if not axes and not any(several.values()):
        raise InputError("sweep: it must have at least one list of values, for example sweep.ngram=[2,3]")
    return SweepConfig(name, strategy, axes, **several)


def _variants(node: Any) -> dict[str, Mapping[str, object]]:
    """The variants by title; one that is null is left out."""
    if not isinstance(node, dict):
        raise ConfigError("sweep.variants", node, "a mapping of titles to parameters")
    variants = {title: changes for title, changes in node.items() if changes is not None}
    if not variants:
        raise ConfigError("sweep.variants", node, "at least one variant that is not null")
    for title, changes in variants.items():
        if not isinstance(changes, dict):
            raise ConfigError(f"sweep.variants.{title}", changes, "null or a mapping of parameters such as {window:3}")
    return variants


def _grids(node: Any) -> dict[str, Mapping[str, tuple[object, ...]]]:
    """Values per swept parameter, by method; a method that is null is left out."""
    if not isinstance(node, dict):
        raise ConfigError("sweep.grids", node, "a mapping of methods to lists of values")
    grids: dict[str, Mapping[str, tuple[object, ...]]] = {}
    for method, lists in node.items():
        if lists is None:
            continue
        key = f"sweep.grids.{method}"
        if not isinstance(lists, dict):
            raise ConfigError(key, lists, "null or a mapping of parameters to lists such as {ngram:[2,3]}")
        axes = {parameter: _values(f"{key}.{parameter}", value) for parameter, value in lists.items()}
        grids[method] = {parameter: values for parameter, values in axes.items() if values is not None}
    if not grids:
        raise ConfigError("sweep.grids", node, "at least one method that is not null")
    if sum(math.prod(len(values) for values in axes.values()) for axes in grids.values()) > MAX_SWEEP_CELLS:
        raise InputError(f"sweep.grids: its lists must make at most {MAX_SWEEP_CELLS} combinations")
    return grids


def _baselines(resolved: Mapping[str, Any]) -> tuple[str, ...]:
    sweep = resolved["sweep"]
    key = "sweep.baselines" if isinstance(sweep, dict) and "baselines" in sweep else "baselines"
    value = sweep["baselines"] if key == "sweep.baselines" else resolved["baselines"]
    if value is None or value == []:
        return ("vllm",)
    names = _names(key, _values(key, value) or ())
    for name in names:
        if name not in resolved["methods"] and not is_import_path(name):
            raise ConfigError(key, name, "one of " + ", ".join(sorted(resolved["methods"])))
    return ("vllm", *(name for name in dict.fromkeys(names) if name != "vllm"))


def _values(key: str, value: Any) -> tuple[object, ...] | None:
    """A list of values; one value alone is a list of one, null means "not swept"."""
    if value is None:
        return None
    values = tuple(value) if isinstance(value, list) else (value,)
    if not values or any(isinstance(item, (list, dict)) or item is None for item in values):
        raise ConfigError(key, value, "one value or a list of values such as [2,3,5]")
    return tuple(dict.fromkeys(values))


def _names(key: str, values: Iterable[object]) -> tuple[str, ...]:
    return tuple(check_method(key, value) for value in values)


def _build(cls: type[T], key: str, node: Any) -> T:
    """A dataclass from the keys below ``key``."""
    if not isinstance(node, dict):
        raise ConfigError(key, node, "a group of keys")
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    check_keys(f"{key}.", node, known)
    return cls(**node)
