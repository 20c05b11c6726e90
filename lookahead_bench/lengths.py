"""Whether engines can take the prompts, known before an engine starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lookahead_bench.data import encode_turn
from lookahead_bench.errors import InputError
from lookahead_bench.records import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_lengths(
    prompts: Mapping[str, Sequence[Prompt]],
    tokenizer: PreTrainedTokenizerBase,
    max_model_len: int,
    max_new_tokens: int,
) -> list[str]:
    """Refuse prompts that leave no room for a token; say which leave less room than was asked for.

    Only the first turn is known here. What a later turn makes too long is found when it is asked.

    Returns:
        One line per data set in which outputs will end early because of ``max_model_len``.

    Raises:
        InputError: a prompt has no token, or ``max_model_len`` tokens and more.
    """
    notes = []
    for dataset, items in prompts.items():
        lengths = {prompt.prompt_id: len(encode_turn(prompt, 0, (), tokenizer)) for prompt in items}
        longest = max(lengths, key=lengths.__getitem__)
        if lengths[longest] >= max_model_len:
            raise InputError(
                f"engine.max_model_len={max_model_len}: must be at least {lengths[longest] + 1}, since prompt "
                f"{longest} of {dataset} has {lengths[longest]} tokens"
            )
        short = [name for name, length in lengths.items() if length + max_new_tokens > max_model_len]
        if short:
            notes.append(
                f"{dataset}: {len(short)} of {len(items)} prompts leave less room than "
                f"decode.max_new_tokens={max_new_tokens} (longest: {longest}, {lengths[longest]} tokens); their "
                f"outputs end at engine.max_model_len={max_model_len}"
            )
    return notes


def check_token_ids(prompts: Mapping[str, Sequence[Prompt]], vocabulary: int, path: object) -> None:
    """Refuse token ids that the model doesn't know.

    Args:
        vocabulary: how many ids it knows, from 0.
        path: ``dataset.path``, to be named in the message; null for data sets that have none.

    Raises:
        InputError: the first such id, and where it stands.
    """
    for dataset, items in prompts.items():
        for prompt in items:
            largest = max(prompt.token_ids or (0,))
            if largest >= vocabulary:
                raise InputError(
                    f"{path or dataset}: prompt_token_ids of id {prompt.prompt_id!r} has {largest}: "
                    f"must be at most {vocabulary - 1} for this model"
                )
