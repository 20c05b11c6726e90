"""What the kill test kills: a process that forks writers, each of which does what is missing of one run.

    python kill_writer.py RESULTS LOG

A line on stdin starts a writer, whose process id is answered; imports are done once, so that fifty starts take seconds.
A writer keeps a log of its own beside the store: "do 7" before the group of row 7, "done 7" after it.
"""

from __future__ import annotations

import os
import sys

from lookahead_bench.stats import summarise
from lookahead_bench.store import ResultStore
from lookahead_bench.tables import Key

ROWS, GROUP, STEPS = 240, 3, 5
CELLS = ("plain", "method")


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


def write(results: str, log: int) -> None:
    """Do what is missing, group by group; a group's verdicts follow in a write of their own."""
    with ResultStore.open_run(results, "kill", "plan") as store:
        judge(store)
        done = store.done()
        for first in range(0, ROWS, GROUP):
            numbers = [n for n in range(first, first + GROUP) if key_of(n) not in done]
            if numbers:
                os.write(log, b"".join(b"do %d\n" % n for n in numbers))
                store.add_all([row_of(n) for n in numbers])
                os.write(log, b"".join(b"done %d\n" % n for n in numbers))
                judge(store)
        store.write_summary(summarise(*store.frames(), 0))


def judge(store: ResultStore) -> None:
    store.amend({
        Key(row["cell_id"], row["prompt_id"], 0, 0): {"equivalence": "identical"}
        for row in store.rows() if row["equivalence"] == "unchecked"
    })  # fmt: skip


def main() -> None:
    results, log = sys.argv[1:]
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            write(results, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
