"""From rows to prompts, and the seeded sample that is taken of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lookahead_bench.data.sources import read_rows
from lookahead_bench.errors import ConfigError, InputError, check_int
from lookahead_bench.records import Prompt

_CONTENT = ("prompt", "turns", "prompt_token_ids")
_MAX_PROMPTS = 10**9
_MAX_TOKENS = 1 << 20
_CHARACTERS_PER_TOKEN = 16
"""More than text has in any common tokenizer; text that is to be cut to a number of tokens gets so much."""


def load_prompts(cfg_dataset: Mapping[str, object], seed: int) -> dict[str, list[Prompt]]:
    """The prompts of each configured data set, in the data set's own order.

    Args:
        cfg_dataset: ``sources`` (data set name -> where it comes from), ``limit`` (most prompts
            per data set, null for all) and ``path`` (the file of a ``jsonl`` source). A source with
            ``tokens``, a list of lengths, becomes one data set for each: its prompts, all cut to that length.
        seed: draws the sample. With the same seed a smaller limit gives a part of a larger one.

    Raises:
        InputError: a data set is unknown, can't be read, has a bad row, or gives no prompt.
    """
    limit = cfg_dataset.get("limit")
    if limit is not None:
        check_int("dataset.limit", limit, 1, _MAX_PROMPTS)
    sources = cfg_dataset.get("sources")
    if not sources:
        raise ConfigError("dataset", sources, "one data set or more")
    loaded = {}
    for name, source in sources.items():
        prompts = _read(name, source, cfg_dataset.get("path"))
        cut = {name: prompts} if source.get("tokens") is None else _cut(prompts, name, source["tokens"])
        loaded |= {part: _sample(items, limit, f"{seed}:{name}") for part, items in cut.items()}
    return loaded


def data_digest(prompts: Mapping[str, Sequence[Prompt]]) -> str:
    """sha256 over everything of the prompts that can move a result, in their order."""
    content = [
        [name, prompt.prompt_id, prompt.turns, prompt.chat, prompt.token_ids, prompt.metadata.get("prompt")]
        for name, items in prompts.items()
        for prompt in items
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sample(prompts: Sequence[Prompt], limit: int | None, seed: str) -> list[Prompt]:
    order = list(range(len(prompts)))
    random.Random(seed).shuffle(order)
    return [prompts[index] for index in sorted(order[:limit])]


def _cut(prompts: Sequence[Prompt], name: str, tokens: object) -> dict[str, list[Prompt]]:
    """The prompts as data sets ``NAME_TOKENS``; a prompt that is too short goes on with the others."""
    if not isinstance(tokens, list) or not tokens:
        raise ConfigError(f"dataset.sources.{name}.tokens", tokens, "a list of lengths such as [128,512]")
    lengths = [check_int(f"dataset.sources.{name}.tokens", length, 1, _MAX_TOKENS) for length in tokens]
    return {f"{name}_{length}": list(_lengthened(prompts, f"{name}_{length}", length)) for length in lengths}


def _lengthened(prompts: Sequence[Prompt], name: str, length: int) -> Iterator[Prompt]:
    texts = ["\n\n".join(prompt.turns) for prompt in prompts]
    if not all(texts):
        raise InputError(f"{name}: prompts given as token ids can't be cut to a length")
    for place, prompt in enumerate(prompts):
        text, needed = "", _CHARACTERS_PER_TOKEN * length
        for other in itertools.cycle(texts[place:] + texts[:place]):
            text += f"{other}\n\n"
            if len(text) >= needed:
                break
        yield replace(
            prompt,
            prompt_id=f"{prompt.prompt_id}/{length}",
            dataset=name,
            turns=(text[:needed],),
            chat=False,
            metadata={},
            exact_tokens=length,
        )


def _read(name: str, source: Mapping[str, object], path: object) -> list[Prompt]:
    prompts: dict[str, Prompt] = {}
    for where, row in read_rows(name, source, path):
        prompt = _to_prompt(name, source, row, where)
        if prompt.prompt_id in prompts:
            raise InputError(f"{where}: id {prompt.prompt_id!r} was there before")
        prompts[prompt.prompt_id] = prompt
    if not prompts:
        raise InputError(f"the data set {name} has no prompts")
    return list(prompts.values())


def _to_prompt(name: str, source: Mapping[str, object], row: Mapping[str, object], where: str) -> Prompt:
    """Check one row and make it a prompt; ``columns`` says which column is what."""
    columns = source.get("columns") or _own_columns(row)
    given = [key for key in _CONTENT if columns.get(key)]
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        raise InputError(f"{where} must have one of prompt, turns and prompt_token_ids, it has {found}")
    (kind,) = given
    content = _column(row, columns[kind], where)
    metadata = {key: _column(row, key, where) for key in columns.get("metadata") or ()}
    common = {
        "prompt_id": _prompt_id(_column(row, columns.get("id") or "row number", where), where),
        "dataset": name,
        "category": _category(_column(row, columns["category"], where)) if columns.get("category") else "",
    }
    if kind == "prompt_token_ids":
        return Prompt(**common, chat=False, token_ids=_token_ids(content, where), metadata=metadata)
    turns = _turns([content] if kind == "prompt" else content, kind, where)
    chat = _is_chat(name, source, kind)
    instruction = source.get("instruction")
    if chat and instruction:
        # What a model without chat template continues instead.
        metadata["prompt"] = turns[0]
        turns = (str(instruction).replace("{prompt}", turns[0].rstrip("\n")), *turns[1:])
    return Prompt(**common, chat=chat, turns=turns, metadata=metadata)


def _own_columns(row: Mapping[str, object]) -> dict[str, object]:
    """The mapping of a row that names its columns itself, as a JSONL file does."""
    named = ("id", *_CONTENT, "category")
    metadata = [key for key in row if key not in named]
    return {"id": "id", **{key: key for key in named if key in row}, "metadata": metadata}


def _column(row: Mapping[str, object], column: object, where: str) -> object:
    if column not in row:
        raise InputError(f"{where} has no {column!r}, it has: {', '.join(map(str, row))}")
    return row[column]


def _prompt_id(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise InputError(f"{where}: id must be a text or an integer, it is {value!r}")
    return str(value)


def _category(value: object) -> str:
    return "" if value is None else str(value)


def _token_ids(value: object, where: str) -> tuple[int, ...]:
    is_list = isinstance(value, list) and value
    if not is_list or any(isinstance(t, bool) or not isinstance(t, int) or t < 0 for t in value):
        raise InputError(f"{where}: prompt_token_ids must be a list of one or more integers of at least 0")
    return tuple(value)


def _turns(value: object, kind: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or any(not isinstance(t, str) or not t for t in value):
        what = "a text that is not empty" if kind == "prompt" else "a list of texts that are not empty"
        raise InputError(f"{where}: {kind} must be {what}")
    for text in value:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = ascii(text[error.start])
            raise InputError(f"{where}: {kind} has half of a surrogate pair, {found}, which is no character") from error
    return tuple(value)


def _is_chat(name: str, source: Mapping[str, object], kind: str) -> bool:
    chat = source.get("chat", "auto")
    if chat == "auto":
        return kind == "turns"
    if not isinstance(chat, bool):
        raise ConfigError(f"dataset.sources.{name}.chat", chat, "true, false or auto")
    return chat
