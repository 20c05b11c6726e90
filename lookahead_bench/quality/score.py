"""Which stored answers pass their problems' tests: read from the store, written back to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from lookahead_bench.data import encode_turn
from lookahead_bench.quality.extract import Problem, from_chat, from_completion
from lookahead_bench.quality.sandbox import PASSED, Limits, run_program
from lookahead_bench.records import Prompt
from lookahead_bench.store import ResultStore
from lookahead_bench.tables import key_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_CODE = "no code"
_BATCH = 64  # programs between two writes: what an interruption loses at most


def problem_of(prompt: Prompt) -> Problem | None:
    """The problem that a prompt poses; None if nothing can be run on an answer to it."""
    parts = [prompt.metadata.get(name) for name in ("prompt", "entry_point", "test")]
    return Problem(*parts) if all(isinstance(part, str) and part for part in parts) else None


def program_of(prompt: Prompt, token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The program in an answer; None if there is no code in it."""
    problem = problem_of(prompt)
    # Code is taken as it was written: no tidying up of spaces before punctuation.
    how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    if prompt.chat and tokenizer.chat_template:
        return from_chat(problem, tokenizer.decode(token_ids, **how))
    # Decoded behind its prompt: by itself, some tokenizers take the first token's space away.
    before = list(encode_turn(prompt, 0, (), tokenizer))
    text = tokenizer.decode([*before, *token_ids], **how)[len(tokenizer.decode(before, **how)) :]
    return from_completion(problem, text)


def score(
    store: ResultStore,
    prompts: Mapping[str, Sequence[Prompt]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    limits: Limits = Limits(),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Run the answers of first turns that were not run yet; sets their columns ``passed`` and ``test_outcome``.

    Equal programs for a problem are run once and have one outcome, those of earlier calls included.

    Args:
        prompts: per data set; those without tests are passed over.
        tokenizer: the model's. Without a chat template the model continued the bare prompt.
        tell: is called with how many programs are run, of how many.

    Returns:
        How many answers were judged.

    Raises:
        InputError: this machine can't confine a process.
    """
    problems = {
        (dataset, prompt.prompt_id): prompt
        for dataset, items in prompts.items()
        for prompt in items
        if problem_of(prompt) is not None
    }
    outcomes: dict[tuple[str, str, str | None], str] = {}
    answers: dict[tuple[str, str, str | None], list[Mapping[str, Any]]] = {}
    for row in store.rows():
        place = (row["dataset"], row["prompt_id"])
        if row["error"] is not None or row["turn"] != 0 or place not in problems:
            continue
        task = (*place, program_of(problems[place], row["token_ids"], tokenizer))
        if row.get("test_outcome") is not None:
            outcomes[task] = row["test_outcome"]
        else:
            answers.setdefault(task, []).append(row)
    tasks = list(answers)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(tasks), _BATCH):
            some = tasks[start : start + _BATCH]
            tell(start, len(tasks))
            missing = [task for task in some if task not in outcomes]
            found = pool.map(lambda task: _outcome(problems[task[:2]], task[2], limits), missing)
            outcomes |= dict(zip(missing, found))
            _keep(store, ((row, outcomes[task]) for task in some for row in answers[task]))
    return sum(map(len, answers.values()))


def _outcome(prompt: Prompt, program: str | None, limits: Limits) -> str:
    return NO_CODE if program is None else run_program(program, problem_of(prompt), limits)


def _keep(store: ResultStore, judged: Iterable[tuple[Mapping[str, Any], str]]) -> None:
    store.amend(
        {key_of(row): {"passed": outcome == PASSED, "test_outcome": outcome} for row, outcome in judged}
    )
