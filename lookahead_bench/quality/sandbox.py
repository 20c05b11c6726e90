"""Runs a program on its tests in a confined process, and says what came of it.

The process is a new Python in a session and an empty folder of its own. The kernel refuses it sockets,
further processes and every write to a file (see `confine`), and ends it when it takes too much time or memory.
What it can't be kept from is to deceive: code that searches its own process for the secret can say that
it passed. Code that a model writes as an answer has no reason to.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lookahead_bench.errors import InputError
from lookahead_bench.quality.extract import Problem

PASSED = "passed"
_INSIDE = Path(__file__).with_name("inside.py")
_MOST_SAID = 1 << 16  # bytes: an answer is one short line
_PROBES = {
    "import socket\nsocket.socket()": "a socket",
    "import posix\nposix.fork()": "a process",
    "open('made', 'w')": "a file",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may take.

    Attributes:
        cpu_seconds: processor time, its start included. Not wall time, which other work on the machine moves.
        wall_seconds: for a program that sleeps; far more than cpu_seconds, so that it decides nothing else.
        memory_bytes: address space.
        open_files: at once.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30
    open_files: int = 64


def run_program(program: str, problem: Problem, limits: Limits = Limits()) -> str:
    """Run a program on its problem's tests.

    Returns:
        ``passed``, or what happened instead: ``wrong answer``, ``exception: NAME``, ``syntax error``, ``exited``,
        ``timed out``, ``out of memory``, ``crashed (signal N)``.

    Raises:
        InputError: this machine can't confine a process.
    """
    secret = secrets.token_hex(16)
    task = {
        "program": program, "test": problem.test, "entry_point": problem.entry_point, "secret": secret, **asdict(limits),
    }  # fmt: skip
    said, status = _ask(json.dumps(task).encode(), limits.wall_seconds)
    report = _report(said)
    if "unconfined" in report:
        raise InputError(f"quality.pass_at_1: must be false here: {report['unconfined']}")
    outcome = report.get("outcome")
    if outcome == PASSED and report.get("secret") == secret:
        return PASSED
    if isinstance(outcome, str) and outcome != PASSED:
        return outcome[:80]
    return _ending(status)


def check_sandbox() -> None:
    """See that a right program passes here and that the others can't do what they must not.

    Raises:
        InputError: they can, or programs can't be run at all.
    """
    problem = Problem("", "answer", "def check(candidate):\n    assert candidate() == 42\n")
    if (outcome := run_program("def answer():\n    return 42\n", problem)) != PASSED:
        raise InputError(f"quality.pass_at_1: must be false here: a right program does not pass ({outcome})")
    for attempt, what in _PROBES.items():
        if run_program(f"{attempt}\ndef answer():\n    return 42\n", problem) == PASSED:
            raise InputError(f"quality.pass_at_1: must be false here: a confined program could make {what}")


def isolation(limits: Limits = Limits()) -> dict[str, object]:
    """What was in force, for a run's record."""
    return {
        "confinement": "seccomp filter: no sockets, no processes, no signals to others, no file written; no capabilities",
        "python": sys.version.split()[0],
        **asdict(limits),
    }


def _ask(task: bytes, wall_seconds: float) -> tuple[bytes, int | None]:
    """What the process said, and its status; None if it had to be ended."""
    with tempfile.TemporaryDirectory(prefix="lookahead-bench-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", str(_INSIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            # Nothing of ours, and the same hashes, so that the order of a set is the same every time.
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(task)
            said, ended = _read(process.stdout.fileno(), time.monotonic() + wall_seconds)
            if ended:
                with suppress(subprocess.TimeoutExpired):
                    return said, process.wait(timeout=1 + wall_seconds)
            return said, None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def _read(stream: int, deadline: float) -> tuple[bytes, bool]:
    """Bytes up to the end, the deadline, or more than an answer can be; and whether the end was reached."""
    said = b""
    while (left := deadline - time.monotonic()) > 0 and len(said) <= _MOST_SAID:
        if select.select([stream], [], [], left)[0]:
            if not (more := os.read(stream, _MOST_SAID)):
                return said, True
            said += more
    return said, False


def _report(said: bytes) -> dict[str, object]:
    try:
        report = json.loads(said)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def _ending(status: int | None) -> str:
    if status is None or status == -signal.SIGXCPU:
        return "timed out"
    return f"crashed (signal {-status})" if status < 0 else "exited"
