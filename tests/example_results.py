"""Small, plausible sweeps on two data sets, written and read back through the results store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

from lookahead_bench.stats import summarise
from lookahead_bench.store import Results, ResultStore, load_results

DATASETS = ("humaneval", "mt_bench")
PROMPTS = 12
NEW_TOKENS = 64
PLAIN_STEP_SECONDS = 0.0176
NGRAMS = (2, 3, 4, 5, 6)

# Strategy with window, n-gram size and branches; None where it has no such parameters.
Method = tuple[str, tuple[int, int, int] | None]
BASELINES: tuple[Method, ...] = (("vllm", None), ("vllm_control", None), ("autoregressive", None))
METHODS: tuple[Method, ...] = (*BASELINES, *(("lookahead", (5, ngram, 5)) for ngram in NGRAMS))
# Mean tokens a step and cost of a step against a plain one.
STEP_COMPRESSION = {2: 1.25, 3: 1.55, 4: 1.7, 5: 1.78, 6: 1.8}
STEP_COST = {"vllm": 1.0, "vllm_control": 1.0, "autoregressive": 1.08}


def store_run(
    results_dir: Path,
    methods: tuple[Method, ...] = METHODS,
    prompts: int = PROMPTS,
    sweep: str = "ngram",
    change: Callable[[dict], dict] = lambda row: row,
) -> Results:
    """A stored run of every method on both data sets; ``change`` may alter each row before it is stored."""
    random = np.random.default_rng(0)
    generations = [
        _generation(random, dataset, strategy, sizes, prompt)
        for dataset in DATASETS
        for strategy, sizes in methods
        for prompt in range(prompts)
    ]
    with ResultStore.open_run(results_dir, sweep, "0123456789") as store:
        store.add_all([(change(row), steps) for row, steps in generations])
        store.write_config(yaml.safe_dump({"run": {"seed": 0, "repeats": 1}, "sweep": {"name": sweep}}))
        store.write_provenance({"versions": {"vllm": "0.32.0"}, "machine": {"cpu": "a <fast> one"}})
        results = load_results(store.folder)
        store.write_summary(summarise(results.rows, results.steps, seed=0))
    return load_results(results.folder)


def _generation(
    random: np.random.Generator, dataset: str, strategy: str, sizes: tuple[int, int, int] | None, prompt: int
) -> tuple[dict, list[dict]]:
    window, ngram, branches = sizes or (None, None, None)
    label = strategy if sizes is None else f"{strategy} W{window} N{ngram} G{branches}"
    drafts = 0 if sizes is None else (window + branches) * (ngram - 1)
    gain = 0.0 if sizes is None else (STEP_COMPRESSION[ngram] - 1) * (1 if dataset == "humaneval" else 0.7)
    gain *= 1.0 if sizes is None else (window / 5) ** 0.3
    cost = STEP_COST.get(strategy, 1.05 + 0.004 * drafts)
    prompt_id = f"HumanEval/{prompt}" if dataset == "humaneval" else str(81 + prompt)
    key = {
        "cell_id": f"{dataset}-{label}".replace(" ", "-"),
        "dataset": dataset,
        "prompt_id": prompt_id,
        "turn": 0,
        "repeat": 0,
    }
    steps, emitted = [], 1
    while emitted < NEW_TOKENS:
        accepted = 1 + min(int(random.poisson(gain)), (ngram or 1) - 1, NEW_TOKENS - emitted - 1)
        seconds = PLAIN_STEP_SECONDS * cost * random.normal(1, 0.01)
        steps.append(
            {
                **key,
                "step": len(steps),
                "in_flight": 1 + drafts,
                "accepted": accepted,
                "seconds": seconds,
                "draft_seconds": 1e-4 * bool(drafts),
                "forward_seconds": 0.9 * seconds,
                "verify_seconds": 1e-4,
                "commit_seconds": 1e-4,
            }
        )
        emitted += accepted
    row = {
        **key,
        "model": "smollm2-135m",
        "strategy": strategy,
        "label": label,
        "window": window,
        "ngram": ngram,
        "branches": branches,
        "executor": "stock" if strategy.startswith("vllm") else "tree",
        "dtype": "float32",
        "concurrency": 1,
        "temperature": 0.0,
        "max_new_tokens": NEW_TOKENS,
        "is_baseline": strategy == "vllm",
        "category": "",
        "prompt_tokens": 100 + prompt,
        "new_tokens": NEW_TOKENS,
        "decode_steps": len(steps),
        "drafted_tokens": drafts * len(steps),
        "accepted_tokens": NEW_TOKENS - 1 - len(steps),
        "nodes": 1.0 + drafts,
        "prefill_seconds": 0.05,
        "decode_seconds": sum(step["seconds"] for step in steps),
        "finish_reason": "length",
        "token_ids": list(range(NEW_TOKENS)),
        "text": "text",
        "equivalence": "identical",
        "first_divergence": None,
        "divergence_margin": None,
        "error": None,
        "identical_other_batch": True if strategy == "vllm" else None,
        "started_at": "2026-01-01T00:00:00+00:00",
        "load_average": 1.5,
    }
    return row, steps


