"""One vLLM engine inside this process: hand requests in, time its steps, collect what comes out.

Tested with vLLM 0.32.0. Relies on ``LLMEngine.add_request`` and ``step``, and, with
``VLLM_ENABLE_V1_MULTIPROCESSING=0``, on reaching the scheduler and the model runner from here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

from lookahead_bench.engine.settings import engine_arguments, is_plugin
from lookahead_bench.records import EngineSpec, Generation, Request, StepRecord


@dataclass(slots=True)
class _Running:
    """A request on its way."""

    request: Request
    began: float
    internal_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    first_token: float = 0.0
    last_token: float = 0.0
    finish_reason: str = ""


class Session:
    """An engine as its spec describes it.

    Raises:
        Exception: whatever vLLM raises when it can't start.
    """

    def __init__(self, spec: EngineSpec) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._spec = spec
        self._engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)))
        self._tokenizer = self._engine.get_tokenizer()
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._runner = core.model_executor.driver_worker.worker.model_runner if is_plugin(spec) else None

    @property
    def threads(self) -> int:
        """OpenMP threads that the engine computes with."""
        import torch

        return torch.get_num_threads()

    def generate(self, requests: Sequence[Request], concurrency: int = 1) -> list[Generation]:
        """Run the requests, at most ``concurrency`` of them at once; results in their order.

        A request that vLLM refuses comes back with its ``error`` set; the others go on.
        """
        done = {generation.request_id: generation for generation in self.stream(requests, concurrency)}
        return [done[request.request_id] for request in requests]

    def stream(self, requests: Sequence[Request], concurrency: int = 1) -> Iterator[Generation]:
        """Like ``generate``, each result as soon as it is finished."""
        waiting = deque(requests)
        running: dict[str, _Running] = {}
        while waiting or running:
            while waiting and len(running) < concurrency:
                request = waiting.popleft()
                try:
                    running[request.request_id] = self._add(request)
                except (ValueError, TypeError) as error:
                    yield _failed(request, error)
            if running:
                yield from self._step(running)

    def _add(self, request: Request) -> _Running:
        entry = _Running(request, began=perf_counter())
        entry.internal_id = self._engine.add_request(
            request.request_id,
            {"prompt_token_ids": list(request.prompt_token_ids)},
            _sampling_params(request, with_strategy=self._runner is not None),
        )
        return entry

    def _step(self, running: dict[str, _Running]) -> Iterator[Generation]:
        """One engine step; yields the requests that it finished."""
        pending = self._pending_drafts(running) if self._runner is None else {}
        began = perf_counter()
        outputs = self._engine.step()
        ended = perf_counter()
        log = self._runner.step_log if self._runner is not None else None
        for output in outputs:
            entry = running[output.request_id]
            completion = output.outputs[0]
            new = list(completion.token_ids)
            if entry.request.top2_margins:
                entry.margins += [_top2_margin(position) for position in completion.logprobs or ()]
            if not entry.token_ids and new:
                entry.first_token = ended
            elif log is not None:
                entry.steps.append(
                    StepRecord(
                        in_flight=log.in_flight[entry.internal_id],
                        accepted=len(new),
                        seconds=ended - began,
                        draft_seconds=log.draft_seconds,
                        forward_seconds=log.forward_seconds,
                        verify_seconds=log.verify_seconds,
                        commit_seconds=log.commit_seconds,
                    )
                )
            elif entry.token_ids:
                in_flight = 1 + pending.get(entry.internal_id, 0)
                entry.steps.append(StepRecord(in_flight, len(new), ended - began))
            entry.token_ids += new
            entry.last_token = ended
            if output.finished:
                entry.finish_reason = completion.finish_reason
                del running[output.request_id]
                yield self._finished(entry)

    def _pending_drafts(self, running: dict[str, _Running]) -> dict[str, int]:
        """How many tokens vLLM's own drafter has put forward for each request's next step."""
        requests = self._scheduler.requests
        ids = (entry.internal_id for entry in running.values())
        return {key: len(requests[key].spec_token_ids) for key in ids if key in requests}

    def _finished(self, entry: _Running) -> Generation:
        return Generation(
            request_id=entry.request.request_id,
            token_ids=tuple(entry.token_ids),
            text=self._tokenizer.decode(entry.token_ids, skip_special_tokens=True),
            finish_reason=entry.finish_reason,
            prefill_seconds=entry.first_token - entry.began,
            decode_seconds=entry.last_token - entry.first_token,
            steps=tuple(entry.steps),
            margins=tuple(entry.margins) if entry.request.top2_margins else None,
        )


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
        extra = {STRATEGY_ARGUMENT: {"name": spec.name, "parameters": dict(spec.parameters)}}
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=request.max_new_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=list(request.stop_token_ids),
        logprobs=2 if request.top2_margins else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra,
    )


def _top2_margin(position) -> float:
    """Difference of the two highest log-probabilities, which is that of their logits."""
    best = sorted((entry.logprob for entry in position.values()), reverse=True)
    return best[0] - best[1]


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
    """Child side of an EngineProcess: answer requests until the other side hangs up."""
    import traceback

    began = perf_counter()
    try:
        session = Session(connection.recv())
    except Exception as error:
        traceback.print_exc()
        connection.send(error_line(error))
        return
    connection.send(
        {"start_seconds": perf_counter() - began, "threads": session.threads, "versions": package_versions()}
    )
    while True:
        try:
            requests, concurrency = connection.recv()
        except EOFError:
            return
        try:
            connection.send(session.generate(requests, concurrency))
        except Exception as error:
            traceback.print_exc()
            connection.send(error_line(error))
            return


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
