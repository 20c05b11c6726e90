"""From an answer to a program; pure functions of text.

A model without chat template continues the problem's prompt, so its program is the prompt and the
continuation up to where something else begins (the stop sequences of Chen et al. 2021, arXiv 2107.03374,
section 2.1). A chat model writes a fenced block, with the whole function in it or its body alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_STOP = re.compile(r"^(?:(?:class|def|if|print)\b|#)", re.MULTILINE)
_FENCE = re.compile(r"[ \t]*(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Problem:
    """What HumanEval says of a problem.

    Attributes:
        prompt: imports, sometimes functions to use, and the signature with its docstring.
        entry_point: name of the function to write.
        test: source that defines ``check(candidate)``.
    """

    prompt: str
    entry_point: str
    test: str

    @property
    def before(self) -> str:
        """What of the prompt stands before the function: imports, and functions that it may use."""
        found = _definition(self.entry_point).search(self.prompt)
        return self.prompt[: found.start()] if found else self.prompt


def from_completion(problem: Problem, text: str) -> str:
    """The program of a base model's answer: the prompt, continued up to the first stop at column 0."""
    whole = problem.prompt + text
    # Where the prompt ends in the middle of a line, that line is still the function's.
    starts = (found.start() for found in _STOP.finditer(whole))
    end = next((start for start in starts if start >= len(problem.prompt)), len(whole))
    return whole[:end]


def from_chat(problem: Problem, text: str) -> str | None:
    """The program of a chat model's answer; None if no code is in it.

    It is the first fenced block that defines the function, below what the prompt has before it; else the first
    block that is the function's body, below the prompt. An answer without any fence is taken for a block itself.
    """
    fenced = list(fenced_blocks(text))
    blocks = fenced or [text]
    for block in blocks:
        if _definition(problem.entry_point).search(block):
            return f"{problem.before}\n{block}"
    bodies = [body for block in blocks if block.strip() for body in _as_bodies(block)]
    programs = [f"{problem.prompt.rstrip()}\n{body}" for body in bodies]
    # Words without code are no program that fails, they are none.
    return next(filter(_compiles, programs), programs[0] if fenced and programs else None)


def fenced_blocks(text: str) -> Iterator[str]:
    """What stands between fences (CommonMark's, section 4.5); a last fence that is never closed ends with the text."""
    block: list[str] | None = None
    fence = ""
    for line in text.splitlines():
        found = _FENCE.fullmatch(line.rstrip())
        if block is None:
            if found:
                block, fence = [], found["fence"]
        elif found and not found["info"] and found["fence"].startswith(fence):
            yield _joined(block)
            block = None
        else:
            block.append(line)
    if block is not None:
        yield _joined(block)


def _joined(lines: list[str]) -> str:
    text = "\n".join([*lines, ""])
    # A block inside a list is indented as a whole; the body of a function is so as well, which is put right later.
    return textwrap.dedent(text)


def _as_bodies(block: str) -> Iterator[str]:
    """A block as a function's body: indented as a whole, or where only its first line lost its indentation."""
    yield textwrap.indent(textwrap.dedent(block), _INDENT)
    yield _INDENT + block.lstrip()


def _compiles(program: str) -> bool:
    try:
        compile(program, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async\s+)?def\s+{re.escape(name)}\s*\(", re.MULTILINE)
