"""Lookahead decoding on the real model, against what the authors' implementation took.

The reference (tests/lade_reference.json) is commit eed010d of github.com/hao-ai-lab/LookaheadDecoding
on the default model in float32: prompts, the first 64 tokens of greedy output and, per configuration,
its steps up to there. It counts the prefill as a step. Its greedy output is the target here; where the draft leaves it, as in the
window, the model's own choice is computed, one forward pass per step over the cached context.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from lookahead_bench.strategy import Step, Strategy, make_strategy
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, verify

pytestmark = pytest.mark.model

REFERENCE = json.loads((Path(__file__).parent / "lade_reference.json").read_text())
PROMPTS = {prompt["id"]: prompt for prompt in REFERENCE["prompts"]}


class ReferenceTarget:
    """The default model in float32 behind a prompt with its known greedy output."""

    def __init__(self, model, prompt: dict) -> None:
        self.prompt, self.output = prompt["prompt_token_ids"], prompt["greedy"]
        self._text = [*self.prompt, *self.output]
        self._model = model
        filled = DynamicCache()
        model(torch.tensor([self._text]), past_key_values=filled)
        self._layers = [(layer.keys, layer.values) for layer in filled.layers]

    def choices(self, tree: TokenTree, context: int) -> list[int]:
        """The choices at a tree whose root is token ``context - 1`` of the text."""
        ends = [context + depth for depth in tree.depths]
        right = [True] * len(tree)
        for node in range(1, len(tree)):
            place = ends[node] - 1
            known = place < len(self._text) and self._text[place] == tree.tokens[node]
            right[node] = right[tree.parents[node]] and known
        choices, asked = [NO_CHOICE] * len(tree), []
        for node, wanted in enumerate(tree.wants_logits):
            if wanted and right[node] and ends[node] < len(self._text):
                choices[node] = self._text[ends[node]]
            elif wanted:
                asked.append(node)
        if asked:
            for node, choice in zip(asked, self._computed(tree, context - 1, asked)):
                choices[node] = choice
        return choices

    def _computed(self, tree: TokenTree, past: int, nodes: list[int]) -> list[int]:
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._layers):
            cache.update(keys[:, :, :past], values[:, :, :past], index)
        seen = torch.from_numpy(tree.mask())
        allowed = torch.cat([torch.ones(len(tree), past, dtype=torch.bool), seen], dim=1)
        logits = self._model(
            torch.tensor([tree.tokens]),
            attention_mask=torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[None, None],
            position_ids=torch.tensor([[past + depth for depth in tree.depths]]),
            past_key_values=cache,
        ).logits[0]
        return logits[nodes].argmax(dim=-1).tolist()


def tokens_per_step(method: Strategy, target: ReferenceTarget, prefill_has_draft: bool) -> list[int]:
    """Tokens that each pass emitted, the prefill's first; the output is checked on the way."""
    method.begin(tuple(target.prompt))
    emitted: list[int] = []
    steps: list[int] = []
    while len(emitted) < len(target.output):
        root = [*target.prompt, *emitted][-1]
        if steps or prefill_has_draft:
            tree = method.draft(method.max_drafts)
        else:
            tree = TokenTree.root(root)
        choices = target.choices(tree, len(target.prompt) + len(emitted))
        verdict = verify(tree, choices)
        room = len(target.output) - len(emitted)
        emitted += verdict.tokens[:room]
        steps.append(len(verdict.tokens[:room]))
        method.observe(Step(tree, tuple(choices), verdict.path, verdict.tokens))
    assert emitted == target.output
    return steps


@pytest.fixture(scope="module")
def model(model_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def targets(model) -> dict[str, ReferenceTarget]:
    return {name: ReferenceTarget(model, prompt) for name, prompt in PROMPTS.items()}


def reference(prompt_id: str, settings: dict) -> list[int]:
    """Tokens per step that the authors' implementation took with seed 0."""
    for run in REFERENCE["runs"]:
        if run["id"] == prompt_id and settings.items() <= run.items():
            return run["tokens_per_step"]
    raise LookupError(f"no reference run of {prompt_id} with {settings}")


def compression(all_steps: list[list[int]]) -> float:
    """S over several prompts: tokens after the first, per pass after the prefill."""
    return sum(sum(steps) - 1 for steps in all_steps) / sum(len(steps) - 1 for steps in all_steps)


def test_the_official_variant_takes_the_official_steps_one_by_one(targets):
    method = make_strategy("lookahead", window=5, ngram=5, branches=5, pool_from_prompt=False, variant="official")
    steps = tokens_per_step(method, targets["HumanEval/8"], prefill_has_draft=True)
    expected = reference("HumanEval/8", {"W": 5, "N": 5, "G": 5, "pool_from_prompt": False})
    assert steps == expected


@pytest.mark.parametrize("pool_from_prompt", [False, True])
def test_the_default_variant_takes_fewer_steps_than_the_official_one(targets, pool_from_prompt):
    settings = {"W": 5, "N": 3, "G": 5, "pool_from_prompt": pool_from_prompt}
    ours = [
        tokens_per_step(
            make_strategy("lookahead", window=5, ngram=3, branches=5, pool_from_prompt=pool_from_prompt),
            target,
            prefill_has_draft=False,
        )
        for target in targets.values()
    ]
    theirs = [reference(name, settings) for name in targets]
    assert compression(ours) >= (1.05 if pool_from_prompt else 1.0) * compression(theirs)
