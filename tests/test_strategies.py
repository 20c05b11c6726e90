"""What holds for every drafting method, on targets that are functions of the context."""

from __future__ import annotations

import inspect
import random
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_bench.errors import ConfigError
from lookahead_bench.simulate import decode, greedy, hash_target, periodic_target
from lookahead_bench.strategy import Strategy, make_strategy, strategies, strategy

pytestmark = pytest.mark.unit

CONF = Path(__file__).resolve().parent.parent / "conf" / "strategy"

METHODS = [
    ("autoregressive", {}),
    ("jacobi", {}),
    ("jacobi", {"window": 1}),
    ("lookahead", {}),
    ("lookahead", {"window": 1, "ngram": 2, "branches": 1}),
    ("lookahead", {"window": 4, "ngram": 2, "branches": 2, "pool_from_prompt": False}),
    ("lookahead", {"window": 5, "ngram": 5, "branches": 5}),
    ("lookahead", {"window": 4, "ngram": 4, "branches": 3, "realign": True}),
    ("lookahead", {"window": 3, "ngram": 4, "branches": 2, "pool_from_prompt": False, "pool_from_output": True}),
    ("lookahead", {"window": 3, "ngram": 3, "branches": 3, "variant": "official"}),
    ("lookahead", {"window": 1, "ngram": 7, "branches": 1, "variant": "official"}),
    ("lookahead", {"window": 4, "ngram": 5, "branches": 3, "variant": "official", "pool_from_prompt": False}),
    ("lookahead", {"window": 2, "ngram": 4, "branches": 2, "variant": "official", "guess_window": True, "realign": True}),
    ("lookahead", {"window": 3, "ngram": 2, "branches": 2, "filled_window": False, "guess_window": False}),
    ("lookahead", {"ngram": 5, "lookahead_window": False}),
    ("prompt_lookup", {}),
    ("prompt_lookup", {"min_match": 2, "max_match": 3, "branches": 4, "length": 7}),
    ("suffix", {}),
    ("suffix", {"max_drafts": 40, "spec_factor": 10, "min_score": 0}),
    ("token_recycling", {}),
    ("token_recycling", {"nodes": 40, "depth": 3}),
    ("token_recycling", {"tree": "adaptive"}),
    ("token_recycling", {"tree": "adaptive", "nodes": 40, "depth": 3}),
    ("adaptive", {}),
    ("adaptive", {"cost": [[1, 1.0], [2, 1.0]], "max_drafts": 5}),
]
each_method = pytest.mark.parametrize(
    ("name", "parameters"), METHODS, ids=[f"{name}-{index}" for index, (name, _) in enumerate(METHODS)]
)
prompts = st.lists(st.integers(0, 4), min_size=1, max_size=30)


def test_every_method_of_the_folder_is_tried_here_and_has_a_configuration():
    assert set(strategies()) == {name for name, _ in METHODS}
    for name, cls in strategies().items():
        settings_ = yaml.safe_load((CONF / f"{name}.yaml").read_text())
        assert settings_.pop("name") == name
        defaults = {key: value.default for key, value in inspect.signature(cls).parameters.items()}
        assert settings_ == defaults


@each_method
def test_a_method_is_a_strategy(name, parameters):
    assert isinstance(make_strategy(name, **parameters), Strategy)


@each_method
@settings(max_examples=15, deadline=None)
@given(prompt=prompts, memory=st.integers(1, 3), vocabulary=st.integers(2, 7))
def test_the_output_is_that_of_plain_decoding(name, parameters, prompt, memory, vocabulary):
    target = hash_target(vocabulary, memory)
    output, _ = decode(make_strategy(name, **parameters), target, prompt, 40, vocabulary)
    assert output == greedy(target, prompt, 40)


@each_method
@settings(max_examples=25, deadline=None)
@given(prompt=prompts, memory=st.integers(1, 3), seed=st.integers(0, 1000))
def test_cut_and_dropped_trees_change_nothing_but_speed(name, parameters, prompt, memory, seed):
    target = hash_target(5, memory)
    output, _ = decode(make_strategy(name, **parameters), target, prompt, 40, 5, random.Random(seed))
    assert output == greedy(target, prompt, 40)


@each_method
def test_the_budget_is_kept_and_a_second_draft_is_the_same(name, parameters):
    method = make_strategy(name, **parameters)
    prompt = [1, 2, 3, 1, 2, 4, 1, 2] * 3
    decode(method, hash_target(5, 2), prompt, 30, 5)
    whole = method.draft(method.max_drafts)
    assert whole.num_drafts <= method.max_drafts
    for budget in range(method.max_drafts + 3):
        draft = method.draft(budget)
        assert draft.num_drafts <= budget
        assert draft.tokens[0] == whole.tokens[0]
    assert method.draft(method.max_drafts) == whole


@each_method
def test_the_same_prompt_gives_the_same_drafts_whatever_came_between(name, parameters):
    target = hash_target(6, 2)
    x, y = [1, 2, 3, 4, 1, 2], [5, 5, 1, 0]
    first = decode(make_strategy(name, **parameters), target, x, 40, 6)
    decode(make_strategy(name, **parameters), target, y, 40, 6)
    assert decode(make_strategy(name, **parameters), target, x, 40, 6) == first


@each_method
def test_text_that_repeats_itself_takes_fewer_steps(name, parameters):
    if name == "autoregressive":
        return
    period = [3, 1, 4, 1, 5, 9, 2, 6]
    _, drafts = decode(make_strategy(name, **parameters), periodic_target(period), period * 3, 65, 10)
    assert len(drafts) < 60


BAD = [
    ("lookahead", "window", 0),
    ("lookahead", "window", 513),
    ("lookahead", "ngram", 1),
    ("lookahead", "ngram", 65),
    ("lookahead", "branches", 0),
    ("lookahead", "branches", -3),
    ("lookahead", "branches", 2.5),
    ("lookahead", "window", True),
    ("lookahead", "pool_from_prompt", "yes"),
    ("lookahead", "pool_from_output", 1),
    ("lookahead", "realign", None),
    ("lookahead", "seed", -1),
    ("lookahead", "variant", "oficial"),
    ("lookahead", "lookahead_window", 0),
    ("lookahead", "full_match", "no"),
    ("lookahead", "exact_history", 1),
    ("lookahead", "levels", 3),
    ("jacobi", "window", 0),
    ("prompt_lookup", "min_match", 5),
    ("prompt_lookup", "max_match", 0),
    ("prompt_lookup", "branches", 0),
    ("prompt_lookup", "length", 65),
    ("suffix", "max_drafts", 0),
    ("suffix", "spec_factor", 0),
    ("suffix", "min_score", 1.5),
    ("suffix", "min_score", "high"),
    ("suffix", "min_match", 0),
    ("token_recycling", "nodes", 0),
    ("token_recycling", "depth", 33),
    ("token_recycling", "tree", "dynamic"),
    ("adaptive", "max_drafts", 0),
    ("adaptive", "cost", 1.5),
    ("adaptive", "cost", []),
    ("adaptive", "cost", [1, 2]),
    ("adaptive", "cost", [[2, 1.0]]),
    ("adaptive", "cost", [[1, 0.0]]),
    ("adaptive", "cost", [[1, 1.0], [1, 2.0]]),
    ("adaptive", "cost", [[1, 1.0], [8, 0.9]]),
    ("adaptive", "cost", [[1, 1.0], [8, float("nan")]]),
    ("autoregressive", "window", 5),
]


@pytest.mark.parametrize(("name", "key", "value"), BAD)
def test_a_bad_parameter_is_refused_by_name_in_one_line(name, key, value):
    with pytest.raises(ConfigError) as refused:
        make_strategy(name, **{key: value})
    assert refused.value.key == f"strategy.{key}"
    assert repr(value) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"window": 512, "branches": 512, "ngram": 6}, "strategy.ngram"),
        ({"variant": "official", "ngram": 2}, "strategy.ngram"),
        ({"full_match": False, "ngram": 2}, "strategy.ngram"),
        ({"lookahead_window": False, "pool_from_prompt": False}, "strategy.lookahead_window"),
        ({"window": 50, "branches": 15, "ngram": 64, "filled_window": False}, "strategy.ngram"),
    ],
)
def test_lookahead_parameters_that_do_not_go_together_are_refused(parameters, key):
    with pytest.raises(ConfigError) as refused:
        make_strategy("lookahead", **parameters)
    assert refused.value.key == key and "\n" not in str(refused.value)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="autoregressive, .*lookahead"):
        make_strategy("lokahead")


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="two strategies"):
        strategy("lookahead")(type("Other", (), {}))
    assert strategies()["lookahead"].__name__ == "Lookahead"
