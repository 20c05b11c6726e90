"""What the engines are asked: every cell the same token ids, tokenised once."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lookahead_bench.data import encode_turn
from lookahead_bench.errors import InputError
from lookahead_bench.records import Cell, Prompt, Request, StrategySpec
from lookahead_bench.schedule import baseline_of
from lookahead_bench.tables import Key

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lookahead_bench.plan import Plan
    from lookahead_bench.store import ResultStore


class Asking:
    """Makes requests. A later turn of a conversation has the baseline's own answers in it."""

    def __init__(self, plan: Plan, tokenizer: PreTrainedTokenizerBase, store: ResultStore) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._store = store
        self._baselines = {cell.cell_id: baseline_of(cell, plan.cells) for cell in plan.cells}
        self._encoded: dict[Key, tuple[int, ...]] = {}

    def baseline_key(self, cell: Cell, prompt_id: str, turn: int) -> Key | None:
        """Key of the row that a row of ``cell`` is compared with; None if there is no baseline."""
        baseline = self._baselines[cell.cell_id]
        return Key(baseline.cell_id, prompt_id, turn, 0) if baseline else None

    def baseline_row(self, cell: Cell, prompt_id: str, turn: int) -> Mapping[str, object] | None:
        """That row, if it is there and didn't fail."""
        key = self.baseline_key(cell, prompt_id, turn)
        row = self._store.row(key) if key else None
        return row if row and row["error"] is None else None

    def request(self, cell: Cell, prompt: Prompt, turn: int, repeat: int, *, margins: bool = False) -> Request:
        """One turn of a prompt, for a cell.

        Raises:
            InputError: the prompt leaves no room for an answer, or an earlier answer is missing.
        """
        seed = zlib.crc32(f"{self._plan.seed} {cell.dataset} {prompt.prompt_id} {turn} {repeat}".encode())
        return Request(
            request_id=f"{prompt.dataset}/{prompt.prompt_id}/{turn}/{repeat}",
            prompt_token_ids=self._encode(cell, prompt, turn),
            max_new_tokens=cell.max_new_tokens,
            strategy=_strategy(cell),
            temperature=cell.temperature,
            # Greedy decoding draws nothing. Otherwise a request draws the same however it is scheduled.
            seed=seed if cell.temperature > 0 else None,
            ignore_eos=prompt.exact_tokens is not None,
            logit_gaps=margins,
        )

    def possible(self, cell: Cell, prompt: Prompt, turn: int) -> bool:
        """Whether `request` will give one, as far as can be said before earlier turns are answered."""
        if any(self.baseline_row(cell, prompt.prompt_id, earlier) is None for earlier in range(turn)):
            return True
        try:
            self._encode(cell, prompt, turn)
        except InputError:
            return False
        return True

    def earlier(self, cell: Cell) -> list[tuple[int, ...]]:
        """The cell's stored outputs, in the order in which they were stored."""
        rows = self._store.rows()
        return [tuple(row["token_ids"]) for row in rows if row["cell_id"] == cell.cell_id and row["error"] is None]

    def warm_up(self, cell: Cell, prompt: Prompt) -> list[Request]:
        """As many requests as a cell has at once, to be run and dropped before it is measured.

        They share no pool: what is dropped serves nothing later.
        """
        strategy = _strategy(cell)
        if strategy is not None:
            strategy = replace(strategy, pool=None)
        return [
            Request(
                request_id=f"warm-up/{number}",
                prompt_token_ids=encode_turn(prompt, 0, (), self._tokenizer),
                max_new_tokens=self._plan.warmup_tokens,
                strategy=strategy,
                temperature=cell.temperature,
                ignore_eos=True,
            )
            for number in range(cell.concurrency)
        ]

    def _encode(self, cell: Cell, prompt: Prompt, turn: int) -> tuple[int, ...]:
        place = self.baseline_key(cell, prompt.prompt_id, turn) or Key(cell.cell_id, prompt.prompt_id, turn, 0)
        if place not in self._encoded:
            answers = [self._answer(cell, prompt, earlier) for earlier in range(turn)]
            ids = encode_turn(prompt, turn, answers, self._tokenizer)
            if len(ids) >= cell.engine.max_model_len:
                raise InputError(
                    f"turn {turn + 1} of prompt {prompt.prompt_id} has {len(ids)} tokens; "
                    f"engine.max_model_len={cell.engine.max_model_len} leaves no room for an answer"
                )
            self._encoded[place] = ids
        return self._encoded[place]

    def _answer(self, cell: Cell, prompt: Prompt, turn: int) -> str:
        row = self.baseline_row(cell, prompt.prompt_id, turn)
        if row is None:
            raise InputError(f"the baseline has no answer to turn {turn + 1}, and the next turn needs it")
        return str(row["text"])


def _strategy(cell: Cell) -> StrategySpec | None:
    return None if cell.engine.executor == "stock" else cell.strategy
