"""What the user sees while a run goes on: one live bar, or a line now and then where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_SECONDS = 15.0
"""Least time between two lines of a bar that has no terminal."""


class RunProgress(Protocol):
    """Told of everything that takes time; a context manager."""

    def phase(self, text: str) -> None:
        """Something untimed begins: an engine starts, margins are looked up."""

    def begin(self, total: int, done: int) -> None:
        """Measuring begins: ``total`` rows, ``done`` of them from an earlier run."""

    def working(self, row: str) -> None:
        """The rows ``row`` names (method, data set, prompt) are being decoded."""

    def row(self, row: Mapping[str, Any]) -> None:
        """A row is finished."""

    def note(self, text: str) -> None:
        """Something the user should read, now and when the run is over."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_progress(stream: TextIO | None = None) -> RunProgress:
    """A live bar if ``stream`` (default: stderr) is a terminal, else lines."""
    console = Console(file=stream or sys.stderr)
    return LiveProgress(console) if console.is_terminal else LineProgress(console)


class Clock:
    """How far a run is, and how long it will take at the speed it had so far."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self._done_before = done
        self._begun = time.monotonic()

    def seconds_left(self) -> float | None:
        """None as long as nothing was finished."""
        finished = self.done - self._done_before
        if not finished:
            return None
        return (time.monotonic() - self._begun) / finished * (self.total - self.done)


class LiveProgress:
    """One bar: what is being decoded, how many rows are done, tokens/s of the last one, time left."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            # Drawing takes time on the cores that are being measured.
            refresh_per_second=2,
        )
        self._task = self._bar.add_task("starting", total=None, speed="", left="")
        self._clock: Clock | None = None

    def phase(self, text: str) -> None:
        self._bar.update(self._task, description=text, speed="", refresh=True)

    def begin(self, total: int, done: int) -> None:
        self._clock = Clock(total, done)
        self._bar.update(self._task, total=total, completed=done)

    def working(self, row: str) -> None:
        self._bar.update(self._task, description=row)

    def row(self, row: Mapping[str, Any]) -> None:
        self._clock.done += 1
        left = duration(self._clock.seconds_left())
        self._bar.update(self._task, completed=self._clock.done, speed=speed_of(row), left=f"{left} left")

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class LineProgress:
    """The same as lines, at most one per LINE_SECONDS besides phases and notes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock: Clock | None = None
        self._said = float("-inf")
        self._working = ""

    def phase(self, text: str) -> None:
        self._say(text)

    def begin(self, total: int, done: int) -> None:
        self._clock = Clock(total, done)
        self._say(f"{total} rows to measure" + (f", {done} are there already" if done else ""))

    def working(self, row: str) -> None:
        self._working = row

    def row(self, row: Mapping[str, Any]) -> None:
        clock = self._clock
        clock.done += 1
        if time.monotonic() - self._said < LINE_SECONDS and clock.done < clock.total:
            return
        self._said = time.monotonic()
        left = duration(clock.seconds_left())
        self._say(f"{clock.done}/{clock.total}  {self._working}  {speed_of(row)}  {left} left")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def speed_of(row: Mapping[str, Any]) -> str:
    """ "41.0 tokens/s" of a finished row; "failed" if it has an error, "" if it decoded nothing."""
    if row.get("error"):
        return "failed"
    if not row.get("decode_seconds"):
        return ""
    return f"{(row['new_tokens'] - 1) / row['decode_seconds']:.1f} tokens/s"


def duration(seconds: float | None) -> str:
    """ "1:02:03" or "2:03"; "?" if it is not known."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
