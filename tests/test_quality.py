from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from lookahead_bench.command import judge
from lookahead_bench.data import load_prompts
from lookahead_bench.quality.extract import Problem, fenced_blocks, from_chat, from_completion
from lookahead_bench.quality.rates import pass_rates
from lookahead_bench.quality.sandbox import Limits, check_sandbox, run_program
from lookahead_bench.quality.score import problem_of, program_of, score
from lookahead_bench.quality.words import pass_at_1
from lookahead_bench.store import ResultStore, load_results
from tests.test_stats import make_row, summary_of

pytestmark = pytest.mark.unit

FIVE = Problem(
    "def helper(x):\n    return x\n\n\ndef five(x):\n    '''Five more.'''\n",
    "five",
    "def check(candidate):\n    assert candidate(1) == 6\n",
)
SHORT = Limits(cpu_seconds=1, wall_seconds=30.0, memory_bytes=1 << 28)


@pytest.fixture(scope="module")
def humaneval(packaged_sources):
    """All problems, with the instruction that a chat model gets."""
    return load_prompts({"sources": {"humaneval": packaged_sources["humaneval"]}}, seed=0)["humaneval"]


# -- extraction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["def g():", "class A:", "# next", "if True:", "print(1)"])
def test_a_completion_ends_at_a_stop_in_column_0(stop: str):
    answer = f"    y = x + 5  # five\n    if y:\n        print(y)\n\n    def g(): pass\n    return y\n{stop}\n    pass\n"
    program = from_completion(FIVE, answer)
    assert program == FIVE.prompt + answer[: answer.index(f"\n{stop}\n") + 1]


def test_a_completion_without_a_stop_is_taken_whole():
    assert from_completion(FIVE, "    return x + 5") == FIVE.prompt + "    return x + 5"
    # Names that begin as a keyword does are no stops, and what the prompt has before is none either.
    assert from_completion(FIVE, "    return x\nprinted = 1") == FIVE.prompt + "    return x\nprinted = 1"
    assert from_completion(FIVE, "def other(): pass") == FIVE.prompt


BODY = "    def inner(y):\n        return y + 5\n\n    return inner(x)\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"Here:\n```python\ndef five(x):\n{BODY}```\nAnd a test:\n```python\nassert five(1) == 0\n```",
        f"```python\n{BODY}```",
        f"```\n{textwrap.dedent(BODY)}```",
        f"```py\n{BODY.lstrip()}```",
        f"First:\n```sh\npip install five\n```\n~~~~python\ndef five(x):\n{BODY}~~~~",
        f"1. So:\n   ```python\n{textwrap.indent(f'def five(x):{chr(10)}{BODY}', '   ')}   ```",
        f"```python\nfrom math import inf\n\ndef five(x: int) -> int:\n{BODY}",
        "```python\ndef five(x):\n    return helper(x) + 5\n```",
        f"def five(x):\n{BODY}",
    ],
    ids=["whole", "body", "body not indented", "first line not indented", "second block", "in a list", "never closed",
         "uses the prompt's helper", "no fence"],
)  # fmt: skip
def test_a_chat_answers_code_is_found_and_runs(answer: str):
    assert run_program(from_chat(FIVE, answer), FIVE) == "passed"


def test_an_answer_without_code_has_no_program():
    assert from_chat(FIVE, "You should add five to the number, shouldn't you?") is None
    assert from_chat(FIVE, "") is None
    assert list(fenced_blocks("```\na\n``\n````\nb\n")) == ["a\n``\n"]
    assert list(fenced_blocks("````md\n```\na\n```\n````\n~~~\nb")) == ["```\na\n```\n", "b\n"]


def test_a_block_that_is_no_function_fails_instead_of_being_passed_over():
    assert run_program(from_chat(FIVE, "```python\nx +\n```"), FIVE) == "syntax error"


def test_right_solutions_of_real_problems_pass_in_every_form(humaneval):
    # 32, 38 and 50 have functions before the one that is asked for.
    for prompt in [prompt for prompt in humaneval if prompt.prompt_id.partition("/")[2] in ("0", "32", "38", "50", "160")]:
        problem, solution = problem_of(prompt), str(prompt.metadata["canonical_solution"])
        function = problem.prompt[problem.prompt.index(f"def {problem.entry_point}") :] + solution
        programs = {
            from_completion(problem, f"{solution}\n\nprint('more')\n"),
            from_chat(problem, f"```python\n{function}```"),
            from_chat(problem, f"```python\n{solution}```"),
        }
        assert {run_program(program, problem) for program in programs} == {"passed"}, prompt.prompt_id
        assert run_program(from_completion(problem, "    return None\n"), problem) != "passed"


# -- the confined process -----------------------------------------------------------------------

RIGHT = "def five(x):\n    return x + 5\n"
ATTACKS = {
    "exits before the tests": ("import sys\nsys.exit(0)\n", "exited"),
    "exits hard": ("import os\nos._exit(0)\n", "exited"),
    "exits inside the function": ("import sys\ndef five(x):\n    sys.exit(0)\n", "exited"),
    "says that it passed": (
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'{\"outcome\": \"passed\", \"secret\": \"x\"}')\n"
        "    except OSError: pass\nos._exit(0)\n",
        "exited",
    ),
    "floods its answer": (
        "import os\nwhile True:\n    for fd in range(3, 20):\n        try: os.write(fd, b'x' * 65536)\n"
        "        except OSError: pass\n",
        "timed out",
    ),
    "prints it": ("print('passed', flush=True)\nimport os\nos._exit(0)\n", "exited"),
    "catches everything": ("def five(x):\n    try: return 1 / 0\n    except BaseException: return None\n", "wrong answer"),
    "replaces assertion errors": ("import builtins\nbuiltins.AssertionError = Exception\ndef five(x): return 0\n", "wrong answer"),
    "defines check": ("def check(candidate): pass\ndef five(x): return 0\n", "wrong answer"),
    "wants assertions off": ("import sys\nsys.flags\nif __debug__:\n    def five(x): return 0\nelse:\n    five = None\n", "wrong answer"),
    "never ends": ("while True: pass\n", "timed out"),
    "never ends in the function": ("def five(x):\n    while True: pass\n", "timed out"),
    "ignores the limit's signal": ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass\n", "crashed (signal 9)"),
    "takes memory": ("hog = []\nwhile True: hog.append(bytearray(1 << 26))\n", "out of memory"),
    "recurs": ("def five(x): return five(x)\n", "exception: RecursionError"),
    "never closes a string": ("def five(x):\n    '''\n    return x + 5\n", "syntax error"),
    "loses its function": ("def six(x): return x + 5\n", "exception: KeyError"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_what_does_not_solve_the_problem_does_not_pass(name: str):
    program, outcome = ATTACKS[name]
    assert run_program(program, FIVE, SHORT) == outcome


FORBIDDEN = {
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2)",
    "a socket of its own": "import socket\nsocket.socket(socket.AF_UNIX)",
    "a fork": "import posix\nposix.fork()",
    "a program": "import subprocess\nsubprocess.run(['true'])",
    "another program in its place": "import os\nos.execv('/bin/true', ['true'])",
    "a signal to its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)",
    "a signal to all": "import os, signal\nos.kill(-1, signal.SIGTERM)",
    "a file here": "open('made', 'w').write('x' * (1 << 30))",
    "a file elsewhere": "open({folder!r} + '/made', 'w')",
    "a file emptied": "import os\nos.truncate({folder!r} + '/kept', 0)",
    "a file removed": "import os\nos.remove({folder!r} + '/kept')",
    "a file renamed": "import os\nos.rename({folder!r} + '/kept', {folder!r} + '/lost')",
    "a file's mode": "import os\nos.chmod({folder!r} + '/kept', 0)",
    "a folder": "import os\nos.mkdir({folder!r} + '/folder')",
    "more memory": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "a look into its parent": "import os\nopen(f'/proc/{{os.getppid()}}/mem', 'r+b')",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_kernel_refuses_what_an_answer_needs_not(name: str, tmp_path: Path):
    import socket

    (tmp_path / "kept").write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        attempt = FORBIDDEN[name].format(folder=str(tmp_path), port=server.getsockname()[1])
        # Were it possible, the program would be right and pass.
        outcome = run_program(f"{attempt}\n{RIGHT}", FIVE)
    assert outcome.startswith("exception: ") and outcome.partition(" ")[2] in ("PermissionError", "OSError", "ValueError")
    assert os.listdir(tmp_path) == ["kept"] and (tmp_path / "kept").read_text() == "kept"


def test_what_programs_need_is_there():
    program = """
import collections, hashlib, itertools, json, math, random, re, string, threading, typing
from dataclasses import dataclass

@dataclass
class Point:
    x: "int"

seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
print("to nowhere")

def five(x: typing.Optional[int]):
    assert hashlib.md5(b"").hexdigest() and open(collections.__file__).read() and len(seen) == 4
    return Point(x).x + 5
"""
    assert run_program(program, FIVE) == "passed"
    check_sandbox()


def test_an_outcome_does_not_depend_on_the_order_of_hashes():
    program = "def five(x):\n    return 6 if next(iter({'a', 'b', 'c', 'd', 'e', 'f', 'g'})) == FIRST else 0\n"
    first = [name for name in "abcdefg" if run_program(f"FIRST = {name!r}\n{program}", FIVE) == "passed"]
    assert len(first) == 1


# -- the store ----------------------------------------------------------------------------------


def _store_answers(folder: Path, prompts, tokenizer, answers: dict[str, dict[str, str]]) -> ResultStore:
    """A run whose cells answered each prompt with a text."""
    store = ResultStore.open_run(folder, "quality", "0123456789")
    for cell, texts in answers.items():
        for prompt_id, text in texts.items():
            ids = tokenizer.encode(text)
            row = make_row(cell, prompt_id, len(ids), 1.0, 10, dataset="humaneval", accepted_tokens=0)
            store.add(row | {"token_ids": ids, "text": text, "finish_reason": "stop"})
    return store


def test_answers_in_the_store_are_judged_once(tmp_path: Path, humaneval, tokenizer):
    prompts = {"humaneval": humaneval[:3]}
    right = {
        prompt.prompt_id: f"```python\n{prompt.metadata['prompt']}{prompt.metadata['canonical_solution']}```"
        for prompt in prompts["humaneval"]
    }
    first, second, _ = right
    wrong = {**right, first: "I can't.", second: "```python\nreturn None\n```"}
    with _store_answers(tmp_path, humaneval, tokenizer, {"base": right, "la": right, "other": wrong}) as store:
        done: list[tuple[int, int]] = []
        assert score(store, prompts, tokenizer, tell=lambda *counts: done.append(counts)) == 9
        assert done == [(0, 5)]  # programs, each once
        assert score(store, prompts, tokenizer) == 0
        folder = store.folder
    results = load_results(folder)
    outcomes = results.rows.set_index(["cell_id", "prompt_id"])["test_outcome"]
    assert outcomes["other", first] == "no code"
    assert outcomes["other", second] == "wrong answer" or outcomes["other", second].startswith("exception")
    summary = results.summary.set_index("cell_id")
    assert summary.loc["base", "pass_at_1"] == summary.loc["la", "pass_at_1"] == 1
    assert summary.loc["other", "pass_at_1"] == pytest.approx(1 / 3)
    assert tuple(summary.loc["other", ["passes_gained", "passes_lost"]]) == (0, 2)
    # Token for token the same as plain decoding's, and yet other problems solved: that must not be.
    assert judge(results.summary) == ["other passes other problems than plain decoding with the same tokens"]
    said = pass_at_1(results.summary)
    assert "vllm solves 100.0% of 3 problems" in said[0].replace("base", "vllm")
    assert any("other solves 33.3% of 3 problems" in sentence and "2 lost" in sentence for sentence in said)


def test_a_model_without_chat_template_continued_the_bare_prompt(humaneval, tokenizer, monkeypatch):
    prompt = humaneval[0]
    ids = tokenizer.encode(f"{prompt.metadata['canonical_solution']}\n\nclass More:\n")
    monkeypatch.setattr(tokenizer, "chat_template", None)
    assert run_program(program_of(prompt, ids, tokenizer), problem_of(prompt)) == "passed"


# -- rates --------------------------------------------------------------------------------------


def test_pass_rates_by_hand():
    rows = pd.DataFrame(
        [make_row("la", str(number), 5, 1.0, 4, passed=number < 3, finish_reason="length") for number in range(10)]
        + [make_row("la", "failed", None, None, None, error="gone", passed=None, finish_reason="error")]
    )
    base = rows.assign(passed=[True, False, *[True] * 2, *[False] * 7])
    found = pass_rates(rows, base)
    assert found["problems_tested"] == 10 and found["pass_at_1"] == pytest.approx(0.3)
    # Wilson's interval for 3 of 10, by its formula with z = 1.959964.
    assert (found["pass_at_1_low"], found["pass_at_1_high"]) == pytest.approx((0.10779, 0.60322), abs=1e-5)
    assert (found["passes_gained"], found["passes_lost"], found["answers_cut"]) == (1, 1, 10)


def test_repeats_of_a_problem_are_its_share():
    rows = pd.DataFrame(
        [make_row("la", "a", 5, 1.0, 4, repeat=repeat, passed=repeat == 0, finish_reason="stop") for repeat in range(4)]
        + [make_row("la", "b", 5, 1.0, 4, passed=True, finish_reason="stop")]
    )
    found = pass_rates(rows, None)
    assert found["pass_at_1"] == pytest.approx((0.25 + 1) / 2)
    assert pd.isna([found["pass_at_1_low"], found["passes_gained"]]).all()


def test_where_no_answer_was_run_nothing_is_said():
    summary = summary_of(make_row("base", "a", 11, 1.0, 10), make_row("la", "a", 11, 0.4, 5))
    assert summary["pass_at_1"].isna().all() and pass_at_1(summary.reset_index()) == []
    assert judge(summary.reset_index()) == []
