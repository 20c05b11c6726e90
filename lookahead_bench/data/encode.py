"""From a prompt's turn to token ids: the one place where text is tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from lookahead_bench.errors import InputError
from lookahead_bench.records import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_turn(
    prompt: Prompt, turn: int, answers: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Token ids of everything that the model sees when it answers a turn.

    A chat prompt goes through the tokenizer's chat template, if it has one. Otherwise the text is
    continued as it is, turns and answers joined by blank lines. Ids that are given are passed on.

    Args:
        turn: index of the turn, from 0.
        answers: the assistant's answers to the turns before it, one each.

    Raises:
        InputError: the prompt is empty, or the template refuses the conversation.
        ValueError: no such turn, or another number of answers than turns before it.
    """
    if not 0 <= turn < prompt.num_turns:
        raise ValueError(f"{prompt.dataset} {prompt.prompt_id} has no turn {turn}")
    if len(answers) != turn:
        raise ValueError(f"{len(answers)} answers before turn {turn}")
    if prompt.token_ids is not None:
        ids = list(prompt.token_ids)
    elif not prompt.turns or not all(prompt.turns[: turn + 1]):
        ids = []
    elif prompt.chat and tokenizer.chat_template:
        ids = _encode_chat(prompt, turn, answers, tokenizer)
    else:
        ids = _encode_text(prompt, turn, answers, tokenizer)
    if not ids:
        raise InputError(f"prompt {prompt.prompt_id!r} of data set {prompt.dataset} is empty")
    if prompt.exact_tokens is not None and len(ids) < prompt.exact_tokens:
        raise InputError(
            f"prompt {prompt.prompt_id!r} of data set {prompt.dataset} has {len(ids)} tokens, "
            f"too few to be cut to {prompt.exact_tokens}"
        )
    return tuple(ids[: prompt.exact_tokens])


def _encode_chat(
    prompt: Prompt, turn: int, answers: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    messages: list[dict[str, str]] = []
    for said, answer in zip(prompt.turns, answers):
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": prompt.turns[turn]})
    try:
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    except TemplateError as error:
        raise InputError(
            f"the chat template refuses prompt {prompt.prompt_id!r} of data set {prompt.dataset}: {error}"
        ) from error
    return _single_bos(list(encoded["input_ids"]), tokenizer)


def _encode_text(
    prompt: Prompt, turn: int, answers: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    turns = list(prompt.turns[: turn + 1])
    # Where the turn was worded for chat, the data set's own prompt is what can be continued.
    turns[0] = prompt.metadata.get("prompt") or turns[0]
    parts = [part for pair in zip(turns, answers) for part in pair] + [turns[-1]]
    return _single_bos(list(tokenizer("\n\n".join(parts))["input_ids"]), tokenizer)


def _single_bos(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Drop a second BOS: a text may begin with it already, and a template may write it in addition."""
    while len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id:
        del ids[0]
    return ids
