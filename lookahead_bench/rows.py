"""From what an engine answers to a row of the store and its steps."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from lookahead_bench.equivalence import UNCHECKED
from lookahead_bench.records import Cell, Generation, Prompt


def row_of(
    cell: Cell,
    prompt: Prompt,
    *,
    model: str,
    turn: int,
    repeat: int,
    group: int = 0,
    prompt_tokens: int | None,
    started_at: str,
    load_average: float | None,
    loaded: bool | None,
    generation: Generation | None = None,
    error: str | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row, its verdict still open, and its steps.

    A failed request (``error``, or the generation's own) has no tokens, steps or times: they stay null, so
    that it is never taken for a zero.
    """
    error = error or (generation.error if generation else None)
    parameters = dict(cell.strategy.parameters)
    row = {
        "cell_id": cell.cell_id,
        "model": model,
        "label": cell.label,
        "dataset": cell.dataset,
        "prompt_id": prompt.prompt_id,
        "category": prompt.category,
        "turn": turn,
        "strategy": cell.strategy.name,
        "parameters": json.dumps(parameters, sort_keys=True, default=str),
        **{name: parameters.get(name) for name in ("window", "ngram", "branches")},
        "executor": cell.engine.executor,
        "dtype": cell.engine.dtype,
        "concurrency": cell.concurrency,
        "temperature": float(cell.temperature),
        "max_new_tokens": cell.max_new_tokens,
        "is_baseline": cell.is_baseline,
        "shared_pool": cell.shares_pool,
        "repeat": repeat,
        "load_group": group,
        "prompt_tokens": prompt_tokens,
        "equivalence": UNCHECKED,
        "started_at": started_at,
        "load_average": load_average,
        "loaded": loaded,
    }
    if error is not None or generation is None:
        return {**row, "finish_reason": "error", "error": error or "no answer"}, []
    steps = [dataclasses.asdict(step) for step in generation.steps]
    in_flight = [step.in_flight for step in generation.steps]
    measured = {
        "new_tokens": len(generation.token_ids),
        "decode_steps": len(steps),
        "drafted_tokens": sum(in_flight) - len(steps),
        # Every pass gives one token by itself; what it emits beyond that was drafted.
        "accepted_tokens": sum(max(step.accepted - 1, 0) for step in generation.steps),
        "nodes": sum(in_flight) / len(steps) if steps else None,
        "queued_seconds": generation.queued_seconds,
        "prefill_seconds": generation.prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "finish_reason": generation.finish_reason,
        "token_ids": list(generation.token_ids),
        "text": generation.text,
    }
    return row | measured, steps
