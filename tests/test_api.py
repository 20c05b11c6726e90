"""The engine as programs use it, on the real model."""

from __future__ import annotations

import pytest

from lookahead_bench import Engine
from lookahead_bench.errors import ConfigError, InputError

pytestmark = pytest.mark.model

PROMPTS = ["Count from 1 to 9.", "Write a haiku about the sea."]


@pytest.fixture(scope="module")
def engine(model_path, tmp_path_factory):
    log = tmp_path_factory.mktemp("api") / "log"
    with Engine(model_path, enforce_eager=True, max_model_len=256, kv_cache_gib=0.25, max_drafts=48, log=log) as engine:
        yield engine


def test_a_method_and_its_parameters_may_change_with_every_call(engine):
    plain = engine.generate(PROMPTS, strategy="autoregressive", max_new_tokens=32)
    for options in ({"window": 3, "ngram": 3, "branches": 3}, {"window": 2, "ngram": 5, "branches": 4}):
        results = engine.generate(PROMPTS, strategy="lookahead", max_new_tokens=32, **options)
        assert [result.token_ids for result in results] == [result.token_ids for result in plain]
        assert [result.text for result in results] == [result.text for result in plain]
        assert max(result.step_compression for result in results) > 1
        for result in results:
            histogram = result.accepted_histogram
            assert sum(tokens * steps for tokens, steps in histogram.items()) == len(result.token_ids) - 1
    assert all(result.step_compression == 1 for result in plain)


def test_streaming_ends_each_prompt_with_its_result(engine):
    pieces = {"0": (), "1": ()}
    results = {}
    for chunk in engine.stream(PROMPTS, strategy="prompt_lookup", max_new_tokens=24):
        pieces[chunk.request_id] += chunk.token_ids
        if chunk.generation is not None:
            results[chunk.request_id] = chunk.generation
    assert {key: result.token_ids for key, result in results.items()} == pieces
    assert engine.decode(pieces["0"]) == results["0"].text


def test_text_and_token_ids_are_the_same_prompt(engine, tokenizer):
    text = "def add(a, b):"
    ids = tokenizer(text)["input_ids"]
    as_text, = engine.generate([text], chat=False, max_new_tokens=8)
    as_ids, = engine.generate([ids], max_new_tokens=8)
    assert as_text.token_ids == as_ids.token_ids


@pytest.mark.parametrize(
    "options, message",
    [
        ({"strategy": "nope"}, "strategy='nope'"),
        *(
            ({name: value}, f"strategy.{name}=")
            for name, value in {
                "presence_penalty": 1.0,
                "repetition_penalty": 1.1,
                "logprobs": 2,
                "structured_outputs": {"choice": ["a", "b"]},
                "logits_processors": ["own.module:Processor"],
                "lora_request": "adapter",
                "multi_modal_data": {"image": "x.png"},
            }.items()
        ),
        ({"strategy": "lookahead", "window": 60, "ngram": 8}, "max_drafts="),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"concurrency": 99}, "concurrency=99"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(engine, options, message):
    with pytest.raises(ConfigError, match=message):
        engine.generate(["x"], **options)


def test_bad_prompts_are_refused(engine):
    with pytest.raises(InputError, match="one string"):
        engine.generate("x")
    with pytest.raises(InputError, match="empty"):
        engine.generate([[]])
