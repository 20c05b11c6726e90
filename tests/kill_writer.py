"""What the kill test kills: a process that forks writers, each of which does what is missing of one run.

    python kill_writer.py

A line of JSON on stdin, ``[results, log, kill]``, starts a writer; its exit status is answered. Imports are done once, so
that fifty starts take seconds. A writer keeps a log of its own beside the store: "do 7" before the group of row 7, "done 7"
after it. ``kill`` is null, or ``[entries, share]``: with that many entries in its log, and that share of the time between
two of them later, the kernel ends the writer, wherever it is. So a slow machine does not move the instants.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable

from lookahead_bench.stats import summarise
from lookahead_bench.store import ResultStore
from lookahead_bench.tables import Key

ROWS, GROUP, STEPS = 240, 3, 5
CELLS = ("plain", "method")
MOST_SECONDS = 0.02
"""What is taken for the time between two entries at most, and before there are two."""


class Log:
    """The writer's log, which knows when the writer has to die."""

    def __init__(self, path: str, kill: tuple[int, float] | None) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._kill, self._entries, self._last, self._between = kill, 0, 0.0, MOST_SECONDS
        self._arm()

    def add(self, word: str, numbers: Iterable[int]) -> None:
        os.write(self._handle, b"".join(b"%s %d\n" % (word.encode(), number) for number in numbers))
        now = time.monotonic()
        self._entries, self._last, self._between = self._entries + 1, now, min(MOST_SECONDS, now - self._last)
        self._arm()

    def _arm(self) -> None:
        if self._kill and self._kill[0] == self._entries:
            # Nothing handles SIGALRM: it ends a process as SIGKILL does, with nothing of Python's run any more.
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, self._kill[1] * self._between))


def row_of(number: int) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Row ``number`` with its steps: everything about it follows from the number."""
    cell, prompt = CELLS[number % 2], number // 2
    steps = [{"in_flight": 1 + number % 2, "accepted": 1, "seconds": 0.01 * (1 + prompt % 3)} for _ in range(STEPS)]
    row = {
        "cell_id": cell, "model": "m", "label": cell, "dataset": "d", "prompt_id": str(prompt), "turn": 0, "repeat": 0,
        "strategy": "vllm" if cell == "plain" else "lookahead", "executor": "tree", "dtype": "float32", "concurrency": 1,
        "temperature": 0.0, "max_new_tokens": STEPS + 1, "is_baseline": cell == "plain", "new_tokens": STEPS + 1,
        "decode_steps": STEPS, "decode_seconds": sum(step["seconds"] for step in steps) / (1 + number % 2),
        "drafted_tokens": STEPS * (number % 2), "accepted_tokens": 0, "prefill_seconds": 0.1,
        "token_ids": [number] * (STEPS + 1), "text": f"row\n{number}", "equivalence": "unchecked", "load_group": prompt,
    }  # fmt: skip
    return row, steps


def key_of(number: int) -> Key:
    return Key(CELLS[number % 2], str(number // 2), 0, 0)


def write(results: str, log: Log) -> None:
    """Do what is missing, group by group; a group's verdicts follow in a write of their own."""
    with ResultStore.open_run(results, "kill", "plan") as store:
        judge(store)
        done = store.done()
        for first in range(0, ROWS, GROUP):
            numbers = [n for n in range(first, first + GROUP) if key_of(n) not in done]
            if numbers:
                log.add("do", numbers)
                store.add_all([row_of(n) for n in numbers])
                log.add("done", numbers)
                judge(store)
        store.write_summary(summarise(*store.frames(), 0))


def judge(store: ResultStore) -> None:
    store.amend({
        Key(row["cell_id"], row["prompt_id"], 0, 0): {"equivalence": "identical"}
        for row in store.rows() if row["equivalence"] == "unchecked"
    })  # fmt: skip


def main() -> None:
    for line in sys.stdin:
        results, log, kill = json.loads(line)
        child = os.fork()
        if child == 0:
            write(results, Log(log, kill))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
