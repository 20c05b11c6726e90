"""One engine in a process of its own, so that engines can take turns without disturbing each other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from types import TracebackType

from lookahead_bench.engine.settings import engine_environment
from lookahead_bench.errors import EngineError
from lookahead_bench.provenance import environment as speed_variables
from lookahead_bench.records import Chunk, EarlierOutputs, EngineInfo, EngineSpec, Generation, Request

CLOSE_SECONDS = 5.0
"""How long a process that was told to end may take before it is killed."""


class EngineProcess:
    """A vLLM engine in a child process; a context manager.

    Args:
        spec: what the engine is started with.
        log_path: file that takes everything the child and vLLM print.
    """

    def __init__(self, spec: EngineSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = Path(log_path)
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None

    def start(self) -> EngineInfo:
        """Start the process and wait until its engine is ready.

        Raises:
            EngineError: the engine did not come up; one line that says why and names the log.
        """
        began = perf_counter()
        environment = engine_environment(self.spec, os.environ)
        ours, theirs = socket.socketpair()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lookahead_bench.engine.session", str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C is for the harness, which then ends its engines in order.
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        self._send(self.spec)
        ready = self._receive()
        return EngineInfo(
            start_seconds=perf_counter() - began,
            threads=ready["threads"],
            bound_cores=ready["bound_cores"],
            environment=speed_variables(environment),
            versions=ready["versions"],
            log=str(self.log_path),
        )

    def generate(self, requests: Sequence[Request], concurrency: int = 1) -> list[Generation]:
        """Run the requests, at most ``concurrency`` at once; results in their order.

        Raises:
            EngineError: the process died or its engine failed; it has to be started anew.
        """
        chunks = self.stream(requests, concurrency)
        done = {chunk.request_id: chunk.generation for chunk in chunks if chunk.generation is not None}
        return [done[request.request_id] for request in requests]

    def stream(self, requests: Sequence[Request], concurrency: int = 1) -> Iterator[Chunk]:
        """What each step adds to each request, as it comes; the last chunk of a request has its result.

        Whoever stops reading early has the rest computed and dropped.

        Raises:
            EngineError: as ``generate``.
        """
        self._send((list(requests), concurrency))
        finished = False
        try:
            while (chunk := self._receive()) is not None:
                yield chunk
            finished = True
        finally:
            while not finished and self._connection is not None:
                finished = self._receive() is None

    def remember(self, earlier: EarlierOutputs) -> None:
        """Put outputs into a pool of the plug-in, as if their requests had just finished.

        Raises:
            EngineError: as ``generate``.
        """
        self._send(earlier)
        self._receive()

    def close(self) -> None:
        """End the process; harmless if it is not running."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is None:
            return
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def _send(self, message: object) -> None:
        if self._connection is None:
            raise EngineError(f"engine {self.spec.role} is not running")
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._died() from error

    def _receive(self):
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(answer, str):
            self.close()
            raise EngineError(f"engine {self.spec.role} failed: {answer}; see {self.log_path}")
        return answer

    def _died(self) -> EngineError:
        status = self._process.wait()
        self.close()
        return EngineError(f"engine {self.spec.role} died (exit status {status}); see {self.log_path}")
