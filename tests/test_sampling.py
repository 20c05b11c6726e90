"""Sampling over trees draws from the target's own distribution: exactly by rule, and on the real model.

More draws than the suite has time for:

    SAMPLING_DRAWS=2500 python -m pytest tests/test_sampling.py -s
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from lookahead_bench.engine import EngineProcess
from lookahead_bench.records import EngineSpec, Generation, Request, StrategySpec
from lookahead_bench.tree import TreeBuilder
from lookahead_bench.verify import verify

VOCABULARY = 3
DRAWS = int(os.environ.get("SAMPLING_DRAWS", 400))


@pytest.mark.unit
@given(
    branches=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3), max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=VOCABULARY, max_size=VOCABULARY),
)
def test_the_rule_is_exact_on_small_distributions(branches, weights):
    """Every way the target's samples can fall at every node, with its probability: emitted sequences
    have the probability that the target gives them."""
    builder = TreeBuilder(0, 99)
    for branch in branches:
        builder.add_chain(0, branch)
    tree = builder.build()

    def target(path: tuple[int, ...]) -> list[float]:
        turned = weights[sum(path) % VOCABULARY :] + weights[: sum(path) % VOCABULARY]
        return [weight / sum(weights) for weight in turned]

    texts = [tuple(tree.tokens[node] for node in tree.path(node)) for node in range(len(tree))]
    if len(tree) > 7:
        tree = tree.prefix(7)
    found: Counter = Counter()
    for choices in itertools.product(range(VOCABULARY), repeat=len(tree)):
        probability = 1.0
        for text, choice in zip(texts, choices):
            probability *= target(text)[choice]
        found[verify(tree, choices).tokens] += probability
    assert sum(found.values()) == pytest.approx(1)
    for emitted, probability in found.items():
        expected = 1.0
        for place, token in enumerate(emitted):
            expected *= target(emitted[:place])[token]
        assert probability == pytest.approx(expected)


@pytest.mark.unit
def test_requests_that_ask_for_more_than_trees_honour_are_told_by_name():
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    from lookahead_bench.engine.sampling import unsupported_sampling

    honoured = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"], "min_tokens": 1}
    assert unsupported_sampling(SamplingParams(**honoured)) is None
    for name, value in {
        "n": 2,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.1,
        "min_p": 0.1,
        "logprobs": 2,
        "prompt_logprobs": 2,
        "structured_outputs": StructuredOutputsParams(choice=["a", "b"]),
        "logit_bias": {5: 1.0},
        "allowed_token_ids": [5],
        "bad_words": ["x"],
    }.items():
        assert unsupported_sampling(SamplingParams(**honoured, **{name: value})) == name


@pytest.fixture(scope="module")
def spec(model_path) -> EngineSpec:
    return EngineSpec(
        model_path, "stock", enforce_eager=True, max_model_len=128, max_num_seqs=32, prefix_caching=True
    )


@pytest.fixture(scope="module")
def stock(spec, tmp_path_factory):
    """vLLM's own decoding."""
    with EngineProcess(spec, tmp_path_factory.mktemp("stock") / "log") as engine:
        yield engine


def draws(engine, prompt, settings: dict, strategy: StrategySpec | None) -> list[Generation]:
    requests = [Request(str(number), prompt, 3, strategy, **settings) for number in range(DRAWS)]
    return engine.generate(requests, concurrency=32)


@pytest.mark.model
def test_samples_come_from_the_same_distribution_as_stock_sampling(spec, stock, tokenizer, tmp_path):
    """First, second and third token of hundreds of draws, against stock vLLM's, by chi-square.

    The trees hold the likeliest continuation and random siblings, so tokens come by acceptance, by
    rejection and as bonus. No seeds are given to the requests: each draw is independent.
    """
    prompt = tuple(tokenizer("The best thing about the sea is")["input_ids"])
    settings = {"temperature": 0.9, "top_p": 0.95, "top_k": 12}
    likeliest = stock.generate([Request("x", prompt, 4)])[0].token_ids
    expected = draws(stock, prompt, settings, None)
    oracle = StrategySpec("tests.oracle:Oracle", {"target": likeliest, "luck": 0.9, "size": 12})
    for executor in ("tree", "fork"):
        own = replace(spec, executor=executor, role=executor, max_drafts=12, max_paths=6)
        with EngineProcess(own, tmp_path / executor) as engine:
            found = draws(engine, prompt, settings, oracle)
        # More tokens than passes: drafts were accepted.
        assert sum(step.accepted - 1 for result in found for step in result.steps) > 0
        for place in range(3):
            counts = [
                Counter(result.token_ids[place] for result in sample if len(result.token_ids) > place)
                for sample in (expected, found)
            ]
            common = [token for token, count in sum(counts, Counter()).items() if count >= 20]
            table = [[c[token] for token in common] + [c.total() - sum(c[t] for t in common)] for c in counts]
            table = [row for row in zip(*table) if sum(row)]
            p_value = chi2_contingency(list(zip(*table))).pvalue
            print(f"{executor}, token {place + 1}: {len(common)} kinds, p = {p_value:.3f}")
            # Six looks at the data; a wrong rule gives values of 1e-20 and less.
            assert p_value > 1e-4


@pytest.mark.model
def test_each_of_several_eos_ids_ends_the_output(spec, stock, model_path, tokenizer, tmp_path):
    """A generation config with a list: each id in it ends the output, also inside an accepted run."""
    prompt = tuple(tokenizer("Count: one, two, three,")["input_ids"])
    output = stock.generate([Request("x", prompt, 24)])[0].token_ids
    ends = next(token for token in output[4:] if token not in output[:4])
    folder = tmp_path / "model"
    shutil.copytree(model_path, folder, copy_function=lambda source, target: Path(target).symlink_to(source))
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(f'{{"bos_token_id": 1, "eos_token_id": [2, {ends}]}}')
    own = replace(spec, model=str(folder), executor="tree", role="tree", max_drafts=12)
    oracle = StrategySpec("tests.oracle:Oracle", {"target": output, "luck": 1.0, "size": 12})
    with EngineProcess(own, tmp_path / "log") as engine:
        result = engine.generate([Request("x", prompt, 24, oracle)])[0]
    assert result.token_ids == output[: output.index(ends) + 1]
    assert result.finish_reason == "stop"
    assert sum(step.accepted for step in result.steps) == len(result.token_ids) - 1
