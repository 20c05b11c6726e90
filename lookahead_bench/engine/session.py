"""One vLLM engine inside this process: hand requests in, time its steps, collect what comes out.

Tested with vLLM 0.32.0. Relies on ``LLMEngine.add_request`` and ``step``, and, with
``VLLM_ENABLE_V1_MULTIPROCESSING=0``, on reaching the scheduler and the model runner from here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

from lookahead_bench.engine.settings import engine_arguments, is_plugin
from lookahead_bench.provenance import bound_cores
from lookahead_bench.records import Chunk, EarlierOutputs, EngineSpec, Generation, Request, StepRecord

LIKELIEST = 5
"""Tokens whose logits are told where gaps are asked for."""


@dataclass(slots=True)
class _Running:
    """A request on its way."""

    request: Request
    began: float
    queued_seconds: float = 0.0
    internal_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    gaps: list[dict[int, float]] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    first_token: float = 0.0
    last_token: float = 0.0


class Session:
    """An engine as its spec describes it: requests in, steps, results out.

    Raises:
        Exception: whatever vLLM raises when it can't start.
    """

    def __init__(self, spec: EngineSpec) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)))
        self._tokenizer = self._engine.get_tokenizer()
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._runner = core.model_executor.driver_worker.worker.model_runner if is_plugin(spec) else None
        self._running: dict[str, _Running] = {}

    @property
    def threads(self) -> int:
        """OpenMP threads that the engine computes with."""
        import torch

        return torch.get_num_threads()

    @property
    def num_running(self) -> int:
        """Requests that are not finished."""
        return len(self._running)

    def generate(self, requests: Sequence[Request], concurrency: int = 1) -> list[Generation]:
        """Run the requests, at most ``concurrency`` of them at once; results in their order.

        A request that vLLM refuses comes back with its ``error`` set; the others go on.
        """
        chunks = self.stream(requests, concurrency)
        done = {chunk.request_id: chunk.generation for chunk in chunks if chunk.generation is not None}
        return [done[request.request_id] for request in requests]

    def stream(self, requests: Sequence[Request], concurrency: int = 1) -> Iterator[Chunk]:
        """What each step adds to each request, as it comes; the last chunk of a request has its result."""
        waiting, began = deque(requests), perf_counter()
        while waiting or self._running:
            while waiting and len(self._running) < concurrency:
                if (failed := self.add(waiting.popleft(), began)) is not None:
                    yield Chunk(failed.request_id, (), failed)
            yield from self.step()

    def add(self, request: Request, asked_at: float | None = None) -> Generation | None:
        """Hand a request in; returns its failed result if it is refused, None if it is on its way.

        Args:
            asked_at: since when it has been waiting for that, by ``perf_counter``; None: since now.
        """
        from vllm.exceptions import VLLMClientError

        began = perf_counter()
        entry = _Running(request, began, 0.0 if asked_at is None else began - asked_at)
        try:
            entry.internal_id = self._engine.add_request(
                request.request_id,
                {"prompt_token_ids": list(request.prompt_token_ids)},
                _sampling_params(request, with_strategy=self._runner is not None),
            )
        except (VLLMClientError, ValueError, TypeError) as error:
            return _failed(request, error)
        self._running[request.request_id] = entry
        return None

    def remember(self, earlier: EarlierOutputs) -> None:
        """Put outputs into a pool, as if these requests had just finished (plug-in engines)."""
        for output in earlier.outputs:
            self._runner.pools.add(earlier.strategy, output)

    def cancel(self, request_id: str) -> None:
        """Drop a request; it yields nothing more."""
        self._engine.abort_request([self._running.pop(request_id).internal_id], internal=True)

    def step(self) -> list[Chunk]:
        """One engine step, if there is work; what it added."""
        if not self._running:
            return []
        pending = self._pending_drafts() if self._runner is None else {}
        began = perf_counter()
        outputs = self._engine.step()
        ended = perf_counter()
        chunks = []
        for output in outputs:
            entry = self._running[output.request_id]
            completion = output.outputs[0]
            new = tuple(completion.token_ids)
            if entry.request.logit_gaps:
                entry.gaps += [_logit_gaps(position) for position in completion.logprobs or ()]
            if not entry.token_ids:
                entry.first_token = ended
            else:
                record = self._record(entry, pending, len(new), ended - began, output.finished)
                entry.steps.append(replace(record, emitted_at_seconds=ended - entry.first_token))
            entry.token_ids += new
            entry.last_token = ended
            generation = None
            if output.finished:
                del self._running[output.request_id]
                generation = self._finished(entry, completion.finish_reason, completion.stop_reason)
                new = new[: len(new) - (len(entry.token_ids) - len(generation.token_ids))]
            chunks.append(Chunk(output.request_id, new, generation))
        return chunks

    def _record(
        self, entry: _Running, pending: Mapping[str, int], accepted: int, seconds: float, ends: bool
    ) -> StepRecord:
        if self._runner is None:
            drafts, matched = pending.get(entry.internal_id, 0), accepted - 1
            # A draft is a chain. What an output's end cut off isn't seen: there the tokens before the last are sure.
            tried = matched if ends else min(matched + 1, drafts)
            return StepRecord(1 + drafts, accepted, seconds, depth=tried, matched=matched)
        log = self._runner.step_log
        return StepRecord(
            log.in_flight[entry.internal_id],
            accepted,
            seconds,
            log.draft_seconds,
            log.forward_seconds,
            log.verify_seconds,
            log.commit_seconds,
            depth=log.depth.get(entry.internal_id, 0),
            matched=log.matched.get(entry.internal_id, 0),
        )

    def _pending_drafts(self) -> dict[str, int]:
        """How many tokens of vLLM's own drafter each request's next step verifies.

        The scheduler cuts a draft that would reach beyond the model's length (``Scheduler.schedule``).
        """
        requests, longest = self._scheduler.requests, self._scheduler.max_model_len
        known = [key for entry in self._running.values() if (key := entry.internal_id) in requests]
        room = {key: max(0, longest - 1 - requests[key].num_tokens) for key in known}
        return {key: min(len(requests[key].spec_token_ids), room[key]) for key in known}

    def _finished(self, entry: _Running, reason: str, stop_reason: int | str | None) -> Generation:
        ids, steps = entry.token_ids, entry.steps
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        if isinstance(stop_reason, str):
            ids, steps, text = self._cut_at(stop_reason, ids, steps)
        if self._runner is not None and entry.request.strategy is not None:
            self._runner.pools.add(entry.request.strategy, ids)
        return Generation(
            request_id=entry.request.request_id,
            token_ids=tuple(ids),
            text=text,
            finish_reason=reason,
            prefill_seconds=entry.first_token - entry.began,
            decode_seconds=entry.last_token - entry.first_token,
            steps=tuple(steps),
            gaps=tuple(entry.gaps) if entry.request.logit_gaps else None,
            queued_seconds=entry.queued_seconds,
        )

    def _cut_at(
        self, stop: str, ids: list[int], steps: list[StepRecord]
    ) -> tuple[list[int], list[StepRecord], str]:
        """End the output with the token that completes a stop string, as plain decoding would.

        vLLM cuts the text, but keeps all tokens of the step in which the string appeared.
        """
        texts = (self._tokenizer.decode(ids[:count], skip_special_tokens=True) for count in range(1, len(ids) + 1))
        count, text = next((c, t) for c, t in enumerate(texts, 1) if stop in t)
        surplus = len(ids) - count
        if surplus:
            steps = [*steps[:-1], replace(steps[-1], accepted=steps[-1].accepted - surplus)]
        return ids[:count], steps, text[: text.index(stop)]


def _failed(request: Request, error: Exception) -> Generation:
    message = " ".join(str(error).split())
    return Generation(request.request_id, (), "", "error", 0.0, 0.0, (), error=message)


def _sampling_params(request: Request, with_strategy: bool):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from lookahead_bench.engine.runner import STRATEGY_ARGUMENT

    extra = None
    if with_strategy and request.strategy is not None:
        spec = request.strategy
        extra = {STRATEGY_ARGUMENT: {"name": spec.name, "parameters": dict(spec.parameters), "pool": spec.pool}}
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=request.max_new_tokens,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        stop_token_ids=list(request.stop_token_ids),
        stop=list(request.stop),
        logprobs=LIKELIEST if request.logit_gaps else None,
        # The text is decoded once, when the request is finished, unless strings are looked for in it.
        detokenize=bool(request.stop),
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra,
    )


def _logit_gaps(position) -> dict[int, float]:
    """Differences to the highest log-probability, which are those of the logits."""
    highest = max(entry.logprob for entry in position.values())
    return {token: highest - entry.logprob for token, entry in position.items()}


def package_versions() -> dict[str, str]:
    """Versions of what an engine's speed and output depend on."""
    versions = {}
    for package in ("vllm", "torch", "transformers"):
        for distribution in (package, f"{package}-cpu"):
            try:
                versions[package] = version(distribution)
                break
            except PackageNotFoundError:
                continue
    return versions


def serve(connection) -> None:
    """Child side of an EngineProcess: answer until the other side hangs up.

    Comes in: an EngineSpec, then any number of (requests, concurrency) or EarlierOutputs. Goes out: a dict
    once the engine is ready; then, per question, the chunks as they come and None at the end. A string is
    the one line of an error, after which this side ends.
    """
    import traceback

    try:
        session = Session(connection.recv())
        connection.send({"threads": session.threads, "bound_cores": bound_cores(), "versions": package_versions()})
        while True:
            asked = connection.recv()
            if isinstance(asked, EarlierOutputs):
                session.remember(asked)
            else:
                for chunk in session.stream(*asked):
                    connection.send(chunk)
            connection.send(None)
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        traceback.print_exc()
        connection.send(error_line(error))


def error_line(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    import sys
    from multiprocessing.connection import Connection

    serve(Connection(int(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM's threads and atexit hooks have nothing left to save, and may hang.
    os._exit(0)
