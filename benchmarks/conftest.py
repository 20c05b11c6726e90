"""What the benchmarks share: real text as token ids, recorded steps, and the versions beside the times.

A file ``bench_*.py`` has functions ``bench_*(benchmark)`` as pytest-benchmark wants them.
"""

from __future__ import annotations

import pytest

from lookahead_bench.config import CONF
from lookahead_bench.data import load_prompts
from lookahead_bench.models import load_tokenizer, model_named, resolve_model
from lookahead_bench.provenance import versions


def pytest_benchmark_update_machine_info(config, machine_info) -> None:
    """Keep the versions that times depend on."""
    machine_info["versions"] = versions()


@pytest.fixture(scope="session")
def text() -> list[int]:
    """HumanEval's problems with their solutions, one behind the other, as token ids of the default model."""
    import yaml

    sources = yaml.safe_load((CONF / "dataset" / "humaneval.yaml").read_text())["dataset"]["sources"]
    problems = load_prompts({"sources": sources, "limit": None, "path": None}, 0)["humaneval"]
    whole = "\n\n".join(f"{p.metadata['prompt']}{p.metadata['canonical_solution']}" for p in problems[:40])
    return load_tokenizer(resolve_model(model_named("smollm2-135m"))).encode(whole)
