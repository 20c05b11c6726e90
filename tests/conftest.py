"""Settings for every test, made before any library reads them, and the model that tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Correctness only: engines of several processes would bind to the same cores otherwise.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
# Nothing leaves the machine.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ.pop("WANDB_API_KEY", None)

import hypothesis
import pytest
import yaml

from lookahead_bench.models import ModelSource, load_tokenizer, resolve_model

# How long an example takes says nothing on a shared machine.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

CONF = Path(__file__).resolve().parent.parent / "conf"


@pytest.fixture(scope="session")
def model_config() -> dict[str, object]:
    """The default model's configuration."""
    return yaml.safe_load((CONF / "model" / "smollm2-135m.yaml").read_text())


@pytest.fixture(scope="session")
def model_source(model_config) -> ModelSource:
    """The default model, converted in the user's cache if it wasn't yet."""
    return resolve_model(model_config)


@pytest.fixture(scope="session")
def model_path(model_source) -> str:
    """Folder of the default model."""
    return model_source.path


@pytest.fixture(scope="session")
def tokenizer(model_source):
    """The default model's tokenizer, chat template included. Don't change it."""
    return load_tokenizer(model_source)


@pytest.fixture(scope="session")
def packaged_sources() -> dict[str, dict]:
    """``dataset.sources`` of the two packaged data sets, as their YAML files have them."""
    sources = {}
    for name in ("humaneval", "mt_bench"):
        text = (CONF / "dataset" / f"{name}.yaml").read_text()
        sources |= yaml.safe_load(text)["dataset"]["sources"]
    return sources
