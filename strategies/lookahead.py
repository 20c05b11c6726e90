"""Lookahead decoding: Jacobi trajectories of a window of guesses fill an n-gram pool, which is drafted from.

Source: Fu et al. 2024, arXiv 2402.02057, sections 3.2 to 3.4. Each pass verifies at most G n-grams
that begin with the last token and extends W trajectories, kept as columns of N-1 tokens, by one.
Parameters: window W, ngram N, branches G; the rest chooses where n-grams come from and how the
window moves. ``variant=official`` is the authors' implementation (``lookahead_official.py``).
State per request: the prompt, W(N-1) window tokens and a pool of at most 8192 G n-grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.errors import ConfigError, check_bool, check_int
from lookahead_bench.strategy import Step, Strategy, strategy
from lookahead_bench.tree import TokenTree
from strategies.lookahead_improved import ImprovedLookahead
from strategies.lookahead_official import OfficialLookahead

MAX_DRAFTS = 4096
"""Most drafted tokens of one step that parameters may ask for."""

VARIANTS = ("improved", "official")


@strategy("lookahead")
class Lookahead:
    """Lookahead decoding in the variant asked for.

    Args:
        window: W, columns of the window, 1 to 512.
        ngram: N, tokens of an n-gram with its key, 2 to 64; the window has N-1 levels.
        branches: G, most n-grams drafted in a step and most kept per key, 1 to 512.
        pool_from_prompt: fill the pool with the prompt's n-grams before the first step.
        pool_from_output: put the output's n-grams in the pool as it grows; None does as
            ``pool_from_prompt`` says, which is what one switch means in the official implementation.
        realign: after a step that emitted several tokens, move the window on by as many positions,
            not by one. Off by default: the older trajectories are worth more where they are.
        seed: of the window's first tokens, which are drawn from the prompt.
        variant: ``improved``, or ``official`` for the authors' implementation with its quirks.

    Raises:
        ConfigError: a parameter is out of range, or would be ignored by the variant.
    """

    wants_top_k: ClassVar[int] = 0

    def __init__(
        self,
        window: int = 3,
        ngram: int = 3,
        branches: int = 3,
        pool_from_prompt: bool = True,
        pool_from_output: bool | None = None,
        realign: bool = False,
        seed: int = 0,
        variant: str = "improved",
    ) -> None:
        check_int("strategy.window", window, 1, 512)
        check_int("strategy.ngram", ngram, 2, 64)
        check_int("strategy.branches", branches, 1, 512)
        check_bool("strategy.pool_from_prompt", pool_from_prompt)
        if pool_from_output is not None:
            check_bool("strategy.pool_from_output", pool_from_output)
        check_bool("strategy.realign", realign)
        check_int("strategy.seed", seed, 0, 2**63 - 1)
        drafts = (window + branches) * (ngram - 1) - 1
        if drafts > MAX_DRAFTS:
            raise ConfigError(
                "strategy.ngram",
                ngram,
                f"small enough for {MAX_DRAFTS} drafts a step: (window + branches) * (ngram - 1) - 1 "
                f"is {drafts} with window={window}, branches={branches}",
            )
        self._method: Strategy
        if variant == "improved":
            if pool_from_output is None:
                pool_from_output = pool_from_prompt
            self._method = ImprovedLookahead(
                window, ngram, branches, pool_from_prompt, pool_from_output, realign, seed
            )
        elif variant == "official":
            if pool_from_output is not None:
                raise ConfigError(
                    "strategy.pool_from_output", pool_from_output, "null with variant=official"
                )
            if realign:
                raise ConfigError("strategy.realign", realign, "false with variant=official")
            check_int("strategy.ngram", ngram, 3, 64)
            self._method = OfficialLookahead(window, ngram, branches, pool_from_prompt, seed)
        else:
            raise ConfigError("strategy.variant", variant, "one of " + ", ".join(VARIANTS))
        self.max_drafts = self._method.max_drafts

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._method.begin(prompt_ids)

    def draft(self, budget: int) -> TokenTree:
        return self._method.draft(budget)

    def observe(self, step: Step) -> None:
        self._method.observe(step)
