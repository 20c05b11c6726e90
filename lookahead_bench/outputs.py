"""The prompts and outputs of a finished run, to try a method on without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from lookahead_bench.data import encode_turn, load_prompts
from lookahead_bench.models import load_tokenizer, resolve_model
from lookahead_bench.plan import BASELINE
from lookahead_bench.report.runs import find_runs
from lookahead_bench.store import load_results


class StoredOutput(NamedTuple):
    """What plain decoding answered.

    Attributes:
        dataset: its name.
        prompt, output: token ids.
    """

    dataset: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def stored_outputs(folder: Path | str) -> Iterator[StoredOutput]:
    """The first turns of the latest run below ``folder``, as plain decoding answered them.

    Raises:
        InputError: there is no run, or its prompts or its tokenizer can't be read.
    """
    run = find_runs(Path(folder))[-1]
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(resolve_model(config["model"]))
    loaded = load_prompts(config["dataset"], config["run"]["seed"])
    prompts = {(name, prompt.prompt_id): prompt for name, part in loaded.items() for prompt in part}
    rows = load_results(run).rows
    first = rows[(rows["strategy"] == BASELINE) & (rows["turn"] == 0) & (rows["repeat"] == 0) & rows["error"].isna()]
    for row in first.drop_duplicates(["dataset", "prompt_id"]).itertuples():
        ids = encode_turn(prompts[row.dataset, row.prompt_id], 0, (), tokenizer)
        yield StoredOutput(row.dataset, ids, tuple(int(token) for token in row.token_ids))
