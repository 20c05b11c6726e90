"""From a checked configuration to the cells that are measured, each with its identity."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lookahead_bench.config import STOCK_METHODS, Config
from lookahead_bench.cost.choose import choose_curves
from lookahead_bench.drafters import identified, resolve_drafters, speculative_config
from lookahead_bench.engine.settings import runs_eagerly, uses_native
from lookahead_bench.errors import ConfigError
from lookahead_bench.methods import Method, planned_methods, shares_pool
from lookahead_bench.records import Cell, EngineSpec, Prompt
from lookahead_bench.sources import source_digest

if TYPE_CHECKING:
    from lookahead_bench.models import ModelSource

PLUGIN_ROLE = "plugin"
BASELINE = "vllm"
RESULT_PACKAGES = ("lookahead_bench", "vllm", "torch")


@dataclass(frozen=True, slots=True)
class Plan:
    """All the work of one run.

    Attributes:
        sweep: its name; "single" for one method beside the baselines.
        cells: every cell once, data set by data set and concurrency by concurrency, the baseline first in each.
        repeats: how often each prompt is measured in each cell.
        seed: of the order in which cells take turns.
        warmup_tokens: decoded and dropped in each engine before anything is measured.
        plan_id: hash of the cells, the prompts, repeats and seed; equal plans resume each other.
        drafters: the models that draft on stock engines, by the name that the user gave.
        notes: what was chosen for the user, in words: a line per choice.
    """

    sweep: str
    cells: tuple[Cell, ...]
    repeats: int
    seed: int
    warmup_tokens: int
    plan_id: str
    drafters: Mapping[str, ModelSource] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
        ConfigError: a method or one of its parameters that is not allowed, or repeats of a method that
            shares a pool of outputs.
        InputError: a draft model that is not there or does not fit.
    """
    from lookahead_bench.data import data_digest

    methods, notes = choose_curves(
        planned_methods(config), lambda method: _engine(config, model, method, 0, {}), model, config.results_dir
    )
    for method in methods:
        if config.run.repeats > 1 and shares_pool(method.spec):
            raise ConfigError(
                "run.repeats",
                config.run.repeats,
                f"1 where outputs are shared ({method.spec.name}): a repeat would find its own answer in the pool",
            )
    drafters = resolve_drafters((method.spec for method in methods), model, config.strategy.name)
    # One process serves all methods of an executor, so it must take the largest of their drafts.
    max_drafts = max((method.max_drafts for method in methods), default=0)
    cells = tuple(
        _cell(
            config, model, versions, dataset, method, _engine(config, model, method, max_drafts, drafters), concurrency,
            drafters,
        )  # fmt: skip
        for dataset in prompts
        for concurrency in config.concurrency
        for method in methods
    )
    run = config.run
    plan_id = _hash([[cell.cell_id for cell in cells], data_digest(prompts), run.repeats, run.seed])
    return Plan(config.sweep.name, cells, run.repeats, run.seed, run.warmup_tokens, plan_id, drafters, notes)


def _engine(
    config: Config, model: ModelSource, method: Method, max_drafts: int, drafters: Mapping[str, ModelSource]
) -> EngineSpec:
    """The engine of a method; the plug-in's methods of one executor all have the same."""
    engine, spec = config.engine, method.spec
    return EngineSpec(
        model=model.path,
        role=spec.name if method.is_stock else PLUGIN_ROLE,
        executor=method.executor,
        dtype=engine.dtype,
        speculative=speculative_config(spec, drafters) if method.is_stock and spec.name not in STOCK_METHODS else None,
        max_drafts=0 if method.is_stock else max_drafts,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        kv_cache_bytes=engine.kv_cache_bytes,
        enforce_eager=runs_eagerly(engine.enforce_eager),
        native_kernels=not method.is_stock and uses_native(engine.native_kernels),
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
    method: Method,
    engine: EngineSpec,
    concurrency: int,
    drafters: Mapping[str, ModelSource],
) -> Cell:
    placeless = replace(
        engine,
        max_drafts=0,
        model=model.digest or model.path,
        speculative=engine.speculative and identified(engine.speculative, drafters),
    )
    settings = {
        "dataset": dataset,
        "strategy": [method.spec.name, identified(method.spec.parameters, drafters)],
        # What else shares the process, and where the models' files lie, do not change the work.
        "engine": dataclasses.asdict(placeless),
        "decode": dataclasses.asdict(config.decode),
        "concurrency": concurrency,
        "versions": {name: versions[name] for name in RESULT_PACKAGES if name in versions},
        "sources": source_digest(method.spec.name, method.is_stock),
    }
    cell_id = _hash(settings)[:16]
    return Cell(
        cell_id=cell_id,
        dataset=dataset,
        strategy=replace(method.spec, pool=cell_id if shares_pool(method.spec) else None),
        engine=engine,
        max_new_tokens=config.decode.max_new_tokens,
        temperature=config.decode.temperature,
        concurrency=concurrency,
        is_baseline=method.spec.name == BASELINE,
        title=method.title,
    )


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
