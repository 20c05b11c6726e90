"""The process that runs one program on its tests: ``python -P -s -B inside.py``, the task as JSON on its stdin.

It writes one line of JSON to its stdout: the outcome, and with ``passed`` the task's secret, which says that
``check`` came back. An exit status says nothing: a program may exit as it likes.
"""

import json
import os
import sys
import types


def main() -> None:
    """Take the task, be confined, run it, answer."""
    task = json.loads(sys.stdin.buffer.read())
    answer = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from confine import confine

    del sys.path[0], sys.modules["confine"]
    # Bound here: the program can put anything in their places.
    write, leave, encode, secret = os.write, os._exit, json.dumps, task["secret"]
    try:
        confine(task["cpu_seconds"], task["memory_bytes"], task["open_files"])
    except OSError as error:
        write(answer, encode({"unconfined": str(error)}).encode())
        leave(1)
    outcome = run(task["program"], task["test"], task["entry_point"])
    report = {"outcome": outcome, **({"secret": secret} if outcome == "passed" else {})}
    write(answer, encode(report).encode())
    leave(0)


def run(program: str, test: str, entry_point: str) -> str:
    """Define the function, define ``check``, and check it; what came of it in words."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        # Each by itself: a string that the program never closes must not swallow the test.
        code = compile(program, "<solution>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError):
        return "syntax error"
    except MemoryError:
        return "out of memory"
    checking = False
    try:
        exec(code, module.__dict__)
        exec(compile(test, "<test>", "exec", dont_inherit=True), module.__dict__)
        checking = True
        module.__dict__["check"](module.__dict__[entry_point])
    except AssertionError:
        return "wrong answer" if checking else "exception: AssertionError"
    except MemoryError:
        return "out of memory"
    except (SystemExit, KeyboardInterrupt):
        return "exited"
    except BaseException as error:
        # The type alone: messages hold addresses, and whatever the program has read.
        return f"exception: {type(error).__name__[:60]}"
    return "passed"


if __name__ == "__main__":
    main()
