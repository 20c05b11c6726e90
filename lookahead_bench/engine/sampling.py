"""Which sampling parameters tree verification honours."""

from __future__ import annotations

from vllm.sampling_params import SamplingParams


def unsupported_sampling(params: SamplingParams) -> str | None:
    """The first sampling parameter that tree verification does not honour, by name; None if all are.

    Temperature, top-p, top-k, seed, stops and ``min_tokens`` (by not drafting below it) are honoured. A request with one of the others gets no
    drafts and vLLM's own sampler.
    """
    found = {
        "n": params.n != 1,
        "presence_penalty": params.presence_penalty != 0,
        "frequency_penalty": params.frequency_penalty != 0,
        "repetition_penalty": params.repetition_penalty != 1,
        "min_p": params.min_p != 0,
        "logprobs": params.logprobs is not None,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "structured_outputs": params.structured_outputs is not None,
        "logit_bias": bool(params.logit_bias),
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(params.bad_words),
    }
    return next((name for name, asked in found.items() if asked), None)
