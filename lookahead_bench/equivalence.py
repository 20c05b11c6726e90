"""Whether a method's greedy output is that of plain decoding, and if not, whether rounding explains it.

Judged by token ids. Where two outputs part, the *baseline's own* logits decide: if those of the two tokens were closer
there than rounding can move them, either is a right answer of this model in this dtype (near tie). That its two likeliest
tokens are close is not enough: the output's must be one of the close ones. Re-scoring an output in a pass of its own
would prove nothing: another number of tokens in a pass means other kernels and another rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

IDENTICAL = "identical"
NEAR_TIE = "near_tie"
MISMATCH = "mismatch"
UNCHECKED = "unchecked"

NEAR_TIE_MARGINS = {"float32": 1e-4, "bfloat16": 0.5, "float16": 0.0625, "auto": 0.5}
"""Largest top-2 logit margin that counts as a near tie, by dtype.

Unit: the spacing of numbers (ulp) where the winning logit lies, taken as 16 to 32.
bfloat16: the spacing is 2^-3. Matrix products add up in float32 and are rounded once at their end,
so a logit carries half an ulp of its own and about as much from the hidden state before it: one ulp, doubled
for a long context. Two logits that move against each other make 4 ulp = 0.5.
float16: the same, with a spacing of 2^-6.
float32: the spacing is 2^-19. Here adding up is itself what rounds, and its order changes with the
number of tokens in a pass: sums of up to 1536 products wander by about sqrt(1536) = 40 ulp, rounded up to 52, 1e-4.
auto: vLLM never takes "auto" to mean float32; judged as bfloat16.
"""


@dataclass(frozen=True, slots=True)
class Equivalence:
    """A verdict on one output.

    Attributes:
        verdict: ``identical``, ``near_tie``, ``mismatch`` or ``unchecked``.
        first_divergence: index of the first output token that differs; None if none does. If one output
            is a prefix of the other, the index behind the shorter one's end.
        divergence_margin: the baseline's top-2 logit margin there; None if it is not known.
        note: what keeps the margin from being known, "" otherwise.
    """

    verdict: str
    first_divergence: int | None = None
    divergence_margin: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MarginPass:
    """The baseline decoded once more, untimed, with the logits of its likeliest tokens.

    Attributes:
        token_ids: what it gave.
        gaps: at each of them how far the logit of each of the likeliest tokens, two or more, lies below the highest.
    """

    token_ids: tuple[int, ...]
    gaps: tuple[Mapping[int, float], ...]


def first_divergence(baseline: Sequence[int], output: Sequence[int]) -> int | None:
    """Index of the first token in which two outputs differ, None if they are equal."""
    for index, (expected, found) in enumerate(zip(baseline, output)):
        if expected != found:
            return index
    return None if len(baseline) == len(output) else min(len(baseline), len(output))


def judge(
    baseline: Sequence[int], output: Sequence[int], dtype: str, margin_pass: MarginPass | None = None
) -> Equivalence:
    """Compare an output with the baseline's, both greedy.

    Args:
        baseline, output: token ids.
        dtype: of the model; a key of NEAR_TIE_MARGINS.
        margin_pass: needed where the outputs differ; without it such a pair stays ``unchecked``.

    Returns:
        ``near_tie`` only on proof: where the logits at the divergence can't be had, because the margin pass itself
        took another way before it, or where an output ends there, the verdict is ``mismatch`` and the note says so.
    """
    index = first_divergence(baseline, output)
    if index is None:
        return Equivalence(IDENTICAL)
    if margin_pass is None:
        return Equivalence(UNCHECKED, index)
    own = first_divergence(baseline[:index], margin_pass.token_ids[:index])
    if own is not None:
        return Equivalence(
            MISMATCH, index, None, f"plain decoding differs from itself at token {own}, before this one"
        )
    if index >= len(baseline) or index >= len(margin_pass.gaps):
        return Equivalence(MISMATCH, index, None, "plain decoding has no token here")
    gaps, limit = margin_pass.gaps[index], NEAR_TIE_MARGINS[dtype]
    margin = float(sorted(gaps.values())[1])
    if index >= len(output):
        # An end is a token as well: an output without one was cut off.
        return Equivalence(MISMATCH, index, margin, "it ends where plain decoding goes on")
    if all(gaps.get(tokens[index], math.inf) <= limit for tokens in (baseline, output)):
        return Equivalence(NEAR_TIE, index, margin)
    close = "its token is not one of those that are close there" if margin <= limit else ""
    return Equivalence(MISMATCH, index, margin, close)
