"""Lookahead decoding: Jacobi trajectories of a window of guesses fill an n-gram pool, which is drafted from.

Source: Fu et al. 2024, arXiv 2402.02057, sections 3.2 to 3.4; ``variant=official``: what the authors' implementation
does (github.com/hao-ai-lab/LookaheadDecoding, commit eed010d, ``jacobi_greedy_search_multilevel``). Each pass
verifies at most G n-grams that begin with the last token and extends W trajectories of N-1 tokens by one.
Parameters: window W, ngram N, branches G; the rest chooses where n-grams come from and how the window moves.
State per request: the prompt, at most (W+N-2)(N-1) window tokens and a pool of at most 8192 G n-grams (official:
of as many keys as it is given).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from lookahead_bench.errors import ConfigError, check_bool, check_int
from lookahead_bench.strategy import Step, strategy
from lookahead_bench.tree import TokenTree, TreeBuilder
from lookahead_bench.verify import NO_CHOICE
from strategies.lookahead_window import Window, WindowNodes
from strategies.ngram_pool import KEYS, NGramPool

MAX_DRAFTS = 4096
"""Most drafted tokens of one step that parameters may ask for."""

VARIANTS: dict[str, dict[str, bool]] = {
    "improved": {
        "full_match": True,
        "exact_history": True,
        "filled_window": True,
        "early_guesses": True,
        "guess_window": True,
    },
    "official": {
        "full_match": False,
        "exact_history": False,
        "filled_window": False,
        "early_guesses": False,
        "guess_window": False,
    },
}
"""The choices in which the variants differ."""


@strategy("lookahead")
class Lookahead:
    """Lookahead decoding; a choice that is None is as ``variant`` has it.

    The official prefill carries the window's first tokens behind the prompt. ``draft`` gives that tree if it is
    asked before the prefill; where the prefill verifies no tree, as in this project's engine, the window is one
    pass late, guesses from other sources than the window are not. The official guesses share no nodes
    with each other; here they do, which changes the size of a pass and nothing else.

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
        lookahead_window: whether there is a window; without one the pool has the prompt and output alone.
        full_match: an n-gram that is right to its end keeps its last token, and the bonus after it. The official
            implementation's count of matches stops one short.
        exact_history: the output's n-grams are those of the output. The official implementation, after a step of
            several tokens, has the last of them in the place of each.
        filled_window: the window begins full, each column a piece of the prompt, not with one level that
            N-2 passes lengthen.
        early_guesses: guesses are verified from the first step on, not from step N-1.
        guess_window: what the window has after the last token is guessed where the pool leaves room,
            and the window shares nodes with the guesses and may be accepted itself.

    Raises:
        ConfigError: a parameter is out of range, or nothing could ever be accepted with them.
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
        lookahead_window: bool = True,
        full_match: bool | None = None,
        exact_history: bool | None = None,
        filled_window: bool | None = None,
        early_guesses: bool | None = None,
        guess_window: bool | None = None,
    ) -> None:
        check_int("strategy.window", window, 1, 512)
        check_int("strategy.branches", branches, 1, 512)
        check_bool("strategy.pool_from_prompt", pool_from_prompt)
        check_bool("strategy.realign", realign)
        check_int("strategy.seed", seed, 0, 2**63 - 1)
        check_bool("strategy.lookahead_window", lookahead_window)
        if not isinstance(variant, str) or variant not in VARIANTS:
            raise ConfigError("strategy.variant", variant, "one of " + ", ".join(VARIANTS))
        preset = VARIANTS[variant]
        self._pool_from_prompt = pool_from_prompt
        self._pool_from_output = _choice("pool_from_output", pool_from_output, pool_from_prompt)
        self._full_match = _choice("full_match", full_match, preset["full_match"])
        self._exact_history = _choice("exact_history", exact_history, preset["exact_history"])
        self._filled_window = _choice("filled_window", filled_window, preset["filled_window"])
        self._early_guesses = _choice("early_guesses", early_guesses, preset["early_guesses"])
        self._guess_window = _choice("guess_window", guess_window, preset["guess_window"])
        # An n-gram of two tokens has one to guess, and nothing is left of it without its last.
        check_int("strategy.ngram", ngram, 2 if self._full_match else 3, 64)
        if not (lookahead_window or pool_from_prompt or self._pool_from_output):
            allowed = "true where neither pool_from_prompt nor pool_from_output is: nothing would be drafted"
            raise ConfigError("strategy.lookahead_window", lookahead_window, allowed)
        self._width, self._ngram, self._branches = window, ngram, branches
        self._has_window, self._realign = lookahead_window, realign
        self._keys = None if variant == "official" else KEYS
        self._random = random.Random(seed)
        self.max_drafts = self._most_drafts()
        if self.max_drafts > MAX_DRAFTS:
            raise ConfigError(
                "strategy.ngram",
                ngram,
                f"small enough for {MAX_DRAFTS} drafts a step: with window={window}, branches={branches} it may "
                f"draft {self.max_drafts}",
            )

    def _most_drafts(self) -> int:
        sizes = [1]
        if self._has_window:
            sizes.append(self._width * (self._ngram - 1))
            if not self._filled_window:
                sizes += [level * (self._width + self._ngram - 1 - level) for level in range(1, self._ngram - 1)]
        return max(sizes) + self._branches * (self._ngram - 1) - 1

    def begin(self, prompt_ids: Sequence[int]) -> None:
        prompt = tuple(prompt_ids)
        self._last, self._passes = prompt[-1], 0
        self._recent = prompt[-(self._ngram - 1) :]
        self._pool = NGramPool(self._branches, self._keys)
        self._window: Window | None = None
        if self._has_window:
            self._window = Window(self._width, self._ngram - 1, prompt, self._filled_window, self._random)
        self._drafted: TokenTree | None = None
        self._readers: tuple[int, ...] = ()
        if self._pool_from_prompt:
            self._pool.add_text(prompt, self._ngram)

    def draft(self, budget: int) -> TokenTree:
        builder = TreeBuilder(self._last, budget)
        if self._early_guesses or self._passes >= self._ngram - 2:
            for *inner, last in self._guesses():
                # An n-gram's last token without logits can't be entered: its parent's choice is all that is emitted.
                builder.add(builder.add_chain(0, inner), last, wants_logits=self._full_match)
        nodes = self._window.nodes(self._last) if self._window else WindowNodes((self._last,), (-1,), ())
        if self._guess_window:
            self._drafted = self._merged(builder, nodes)
        else:
            self._drafted = self._beside(builder.build(), nodes, budget)
        return self._drafted

    def _guesses(self) -> list[tuple[int, ...]]:
        """The pool's, newest first; then, up to G in all, what the window has after the last token."""
        found = list(self._pool.newest_first(self._last))
        if self._guess_window and self._window:
            found += self._window.after(self._last)
        return found[: self._branches]

    def _merged(self, builder: TreeBuilder, nodes: WindowNodes) -> TokenTree:
        """The draft with the window's nodes, shared where a guess has them already."""
        places = [0]
        for node in range(1, len(nodes.tokens)):
            parent, reads = places[nodes.parents[node]], node in nodes.readers
            places.append(builder.add(parent, nodes.tokens[node], wants_logits=reads))
        self._readers = tuple(places[reader] for reader in nodes.readers)
        return builder.build()

    def _beside(self, guesses: TokenTree, nodes: WindowNodes, budget: int) -> TokenTree:
        """The draft with the window's nodes, none of them shared or accepted."""
        shift, size = len(guesses) - 1, len(nodes.tokens)
        readers = set(nodes.readers)
        self._readers = tuple(reader + shift if reader else 0 for reader in nodes.readers)
        return TokenTree(
            guesses.tokens + nodes.tokens[1:],
            guesses.parents + tuple(parent + shift if parent else 0 for parent in nodes.parents[1:]),
            guesses.wants_logits + tuple(node in readers for node in range(1, size)),
            guesses.may_accept + (False,) * (size - 1),
        ).prefix(budget + 1)

    def observe(self, step: Step) -> None:
        if self._window and self._drafted is not None:
            if step.tree == self._drafted.prefix(len(step.tree)):
                self._window.advance(self._last, self._new_tokens(step), self._pool)
            if self._realign:
                self._window.realign(len(step.emitted) - 1, self._pool)
        self._passes += 1
        self._last = step.emitted[-1]
        added = step.emitted if self._exact_history else (self._last,) * len(step.emitted)
        text = (*self._recent, *added)
        if self._pool_from_output:
            self._pool.add_text(text, self._ngram)
        self._recent = text[-(self._ngram - 1) :]
        self._drafted = None

    def _new_tokens(self, step: Step) -> list[int]:
        """The choice after each column, NO_CHOICE where the pass did not verify the column's end."""
        verified = range(len(step.tree))
        return [step.choices[node] if node in verified else NO_CHOICE for node in self._readers]


def _choice(name: str, value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else check_bool(f"strategy.{name}", value)
