"""The groups of settings, each checked where it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lookahead_bench.checks import check_choice, check_name, check_number
from lookahead_bench.errors import ConfigError, InputError, check_bool, check_int

DTYPES = ("float32", "bfloat16", "float16", "auto")
EXECUTORS = ("tree", "fork")
ENGINE_OWNED = {
    "model": "model",
    "tokenizer": "model",
    "speculative_config": "strategy",
    "dtype": "engine.dtype",
    "max_model_len": "engine.max_model_len",
    "max_num_seqs": "engine.max_num_seqs",
    "kv_cache_memory_bytes": "engine.kv_cache_gib",
    "enforce_eager": "engine.enforce_eager",
    "enable_prefix_caching": "engine.prefix_caching",
    "seed": "run.seed",
    "worker_cls": "engine.executor",
    "scheduler_cls": "engine.executor",
    "additional_config": "engine.executor",
}
"""vLLM's engine arguments that have a key of their own. As ``engine.extra`` they would make rows say what is not so."""
MAX_CONCURRENCY = 1024
TRACKING_MODES = ("auto", "online", "offline", "disabled")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``engine.*``; see EngineSpec for what the keys mean."""

    dtype: str
    executor: str
    max_model_len: int
    max_num_seqs: int
    kv_cache_gib: float | None
    enforce_eager: bool | None
    native_kernels: bool | None
    prefix_caching: bool
    threads: int | None
    extra: Mapping[str, object] | None

    def __post_init__(self) -> None:
        check_choice("engine.dtype", self.dtype, DTYPES)
        check_choice("engine.executor", self.executor, EXECUTORS)
        check_int("engine.max_model_len", self.max_model_len, 16, 1 << 20)
        check_int("engine.max_num_seqs", self.max_num_seqs, 1, 1024)
        if self.kv_cache_gib is not None:
            check_number("engine.kv_cache_gib", self.kv_cache_gib, 0.01, 4096, "null or ")
        if self.enforce_eager is not None:
            check_bool("engine.enforce_eager", self.enforce_eager)
        if self.native_kernels is not None:
            check_bool("engine.native_kernels", self.native_kernels)
        check_bool("engine.prefix_caching", self.prefix_caching)
        if self.threads is not None:
            check_int("engine.threads", self.threads, 1, 1024)
        if self.extra is not None and not isinstance(self.extra, Mapping):
            raise ConfigError("engine.extra", self.extra, "null or a mapping such as {block_size:32}")
        for name in self.extra or ():
            if name in ENGINE_OWNED:
                raise InputError(f"engine.extra.{name}: it has a key of its own; set {ENGINE_OWNED[name]} instead")

    @property
    def kv_cache_bytes(self) -> int | None:
        return None if self.kv_cache_gib is None else int(self.kv_cache_gib * (1 << 30))


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """``decode.*``: settings of one request."""

    max_new_tokens: int
    temperature: float

    def __post_init__(self) -> None:
        check_int("decode.max_new_tokens", self.max_new_tokens, 1, 1 << 20)
        # vLLM takes less than 0.00001 for greedy, and up to 0.01 for 0.01.
        if self.temperature != 0 or isinstance(self.temperature, bool):
            check_number("decode.temperature", self.temperature, 0.01, 10.0, "0 (greedy) or ")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """``run.*``: how the measuring goes."""

    repeats: int
    concurrency: int
    seed: int
    warmup_tokens: int
    dry: bool
    fresh: bool

    def __post_init__(self) -> None:
        check_int("run.repeats", self.repeats, 1, 1000)
        check_int("run.concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        check_int("run.seed", self.seed, 0, (1 << 32) - 1)
        check_int("run.warmup_tokens", self.warmup_tokens, 1, 4096)
        check_bool("run.dry", self.dry)
        check_bool("run.fresh", self.fresh)


@dataclass(frozen=True, slots=True)
class QualityConfig:
    """``quality.*``: whether answers are right; no part of what a cell is, so it may be asked of a finished run."""

    pass_at_1: bool

    def __post_init__(self) -> None:
        check_bool("quality.pass_at_1", self.pass_at_1)


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """``tracking.*``: Weights & Biases."""

    wandb: str
    project: str

    def __post_init__(self) -> None:
        check_choice("tracking.wandb", self.wandb, TRACKING_MODES)
        check_name("tracking.project", self.project)


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """What is measured beside the baselines.

    Attributes:
        name: names the folder of results.
        axes: values per swept parameter of ``strategy``; their product is measured. Empty: the one
            cell that ``strategy.*`` describes.
        methods: for a comparison of methods: their names, None for all; without it, ``strategy`` alone.
        variants: by title, the parameters in which a variant differs from ``strategy``, or from the
            method that its ``name`` says; ``executor`` may be among them.
        grids: by method, values per swept parameter; the product of each method's is measured.
        executors: what each swept method of the plug-in runs with; empty: ``engine.executor``.
        concurrency: requests in flight at once, baselines and all; empty: ``run.concurrency``.
    """

    name: str
    strategy: str | None
    axes: Mapping[str, tuple[object, ...]]
    compares_methods: bool = False
    methods: tuple[str, ...] | None = None
    variants: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    grids: Mapping[str, Mapping[str, tuple[object, ...]]] = field(default_factory=dict)
    executors: tuple[str, ...] = ()
    concurrency: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for number in self.concurrency:
            check_int("sweep.concurrency", number, 1, MAX_CONCURRENCY)
        for executor in self.executors:
            check_choice("sweep.executor", executor, EXECUTORS)
        for title, changes in self.variants.items():
            if "executor" in changes:
                key = f"sweep.variants.{title}.executor"
                check_choice(key, changes["executor"], EXECUTORS)
                if self.executors:
                    raise ConfigError(key, changes["executor"], "left out where sweep.executor is given")
