"""What a decoding step has to move and to compute, and how long that takes at least; pure arithmetic.

Source of the model: Williams et al. 2009, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52:4. A step reads every weight once, however many tokens are in
flight, and the context's keys and values; it computes two operations per weight and token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lookahead_bench.errors import InputError


@dataclass(frozen=True, slots=True)
class Work:
    """A decoder's matrices, in elements.

    Attributes:
        weights: elements of all matrices that a step multiplies with, the LM head among them.
        kv_per_token: elements of keys and values that a token of context leaves behind.
        attention_per_pair: operations per pair of a token in flight and a token it attends to.
    """

    weights: int
    kv_per_token: int
    attention_per_pair: int

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Work:
        """From a ``config.json`` of the Llama family (gated MLP, grouped-query attention).

        Raises:
            InputError: a size is missing.
        """
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        for name in names:
            if not isinstance(config.get(name), int):
                raise InputError(f"config.json: {name} must be there as an integer, as in models of the Llama family")
        hidden, inner, layers, heads, vocabulary = (int(config[name]) for name in names)  # type: ignore[call-overload]
        kv_heads = int(config.get("num_key_value_heads") or heads)  # type: ignore[call-overload]
        size = int(config.get("head_dim") or hidden // heads)  # type: ignore[call-overload]
        attention = 2 * hidden * heads * size + 2 * hidden * kv_heads * size
        return cls(
            weights=layers * (attention + 3 * hidden * inner) + vocabulary * hidden,
            kv_per_token=2 * layers * kv_heads * size,
            attention_per_pair=4 * layers * heads * size,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine was measured to do.

    Attributes:
        bytes_per_second: weights read, in products of a matrix with a vector.
        operations_per_second: in products of large matrices; a multiplication and an addition are two.
    """

    bytes_per_second: float
    operations_per_second: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time of a step, in seconds: the larger of what memory and what arithmetic takes."""

    in_flight: int
    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)


def limit(work: Work, machine: Machine, element_bytes: int, context: int, in_flight: int) -> Limit:
    """The limit of a step.

    Args:
        element_bytes: of weights and KV cache: 4 for float32, 2 for bfloat16 and float16.
        context: tokens before the step.
        in_flight: tokens that the step computes, logits at all of them.
    """
    moved = element_bytes * (work.weights + work.kv_per_token * context)
    operations = in_flight * (2 * work.weights + work.attention_per_pair * (context + in_flight))
    return Limit(in_flight, moved / machine.bytes_per_second, operations / machine.operations_per_second)
