"""The models that draft on the stock engine, smaller ones and EAGLE heads: where they are, and whether they fit.

Their parameter ``draft_model`` is what vLLM's ``speculative_config`` calls ``model``. What fits follows vLLM 0.32.0
(``config/speculative.py``, ``models/llama_eagle.py``, ``models/llama_eagle3.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lookahead_bench.errors import ConfigError
from lookahead_bench.records import StrategySpec

if TYPE_CHECKING:
    from lookahead_bench.models import ModelSource

DRAFT_MODEL = "draft_model"
HEADS = ("eagle", "eagle3")
"""Methods whose model is a head that reads the target's hidden states, and has no tokenizer of its own."""


def resolve_drafters(specs: Iterable[StrategySpec], model: ModelSource, chosen: str) -> dict[str, ModelSource]:
    """Find every draft model, as ``model`` is found, and see that it can draft for ``model``.

    Args:
        specs: methods with checked parameters.
        model: what is decoded.
        chosen: the name of the method whose parameters are ``strategy.*``.

    Returns:
        By its name as the user gave it.

    Raises:
        InputError: there is no such model, or it does not fit. One line that names the key.
    """
    from lookahead_bench.models import model_named, resolve_model

    found: dict[str, ModelSource] = {}
    for spec in specs:
        name = spec.parameters.get(DRAFT_MODEL)
        if not isinstance(name, str):
            continue
        key = f"strategy.{DRAFT_MODEL}" if spec.name == chosen else f"methods.{spec.name}.{DRAFT_MODEL}"
        is_head = spec.parameters.get("method") in HEADS
        try:
            found[name] = resolve_model(model_named(name) | ({"chat": False} if is_head else {}))
        except ConfigError as error:
            raise ConfigError(key, name, error.allowed) from error
        if misfit := _head_misfit(spec, model, found[name]) if is_head else _model_misfit(spec, model, found[name]):
            raise ConfigError(key, name, misfit)
    return found


def speculative_config(spec: StrategySpec, drafters: Mapping[str, ModelSource]) -> dict[str, object]:
    """vLLM's ``speculative_config`` for a stock drafter."""
    config = dict(spec.parameters)
    if DRAFT_MODEL in config:
        config["model"] = drafters[str(config.pop(DRAFT_MODEL))].path
    return config


def identified(parameters: Mapping[str, object], drafters: Mapping[str, ModelSource]) -> dict[str, object]:
    """Parameters of a method, or a ``speculative_config``, with the draft model's digest in place of where it lies."""
    digests = {place: source.digest for name, source in drafters.items() for place in (name, source.path)}
    return {
        key: digests.get(str(value), value) if key in (DRAFT_MODEL, "model") else value
        for key, value in parameters.items()
    }


def _model_misfit(spec: StrategySpec, model: ModelSource, drafter: ModelSource) -> str | None:
    """Why a model can't draft for another, as what it would have to be; None if it can.

    vLLM compares how many tokens there are, and only when it loads. Equal numbers with other tokens would be
    measured without a word, at an acceptance of nearly nothing.
    """
    if spec.parameters.get("use_heterogeneous_vocab"):
        return None
    from lookahead_bench.engine.checks import model_config
    from lookahead_bench.models import load_tokenizer

    sizes = [model_config(source.path).get("vocab_size") for source in (model, drafter)]
    if sizes[0] != sizes[1]:
        return f"a model with the vocabulary of {model.name}: that has {sizes[0]} tokens, this one {sizes[1]}"
    if load_tokenizer(model).get_vocab() != load_tokenizer(drafter).get_vocab():
        return f"a model with the vocabulary of {model.name}: this one's has other tokens"
    return None


def _head_misfit(spec: StrategySpec, model: ModelSource, drafter: ModelSource) -> str | None:
    """The same for an EAGLE head, as far as its configuration tells."""
    from lookahead_bench.engine.checks import model_config

    target, head = model_config(model.path), model_config(drafter.path)
    # Heads in the format of the library speculators have their sizes elsewhere; vLLM reads them.
    reads = head.get("hidden_size")
    if spec.parameters.get("method") == "eagle3":
        reads = head.get("target_hidden_size", reads)
    if reads is not None and reads != target.get("hidden_size"):
        return f"a head for {model.name}, whose hidden size is {target.get('hidden_size')}: this one reads {reads}"
    size = head.get("vocab_size")
    if size is not None and size != target.get("vocab_size"):
        return f"a head for {model.name}, whose vocabulary has {target.get('vocab_size')} tokens: this one's has {size}"
    return None
