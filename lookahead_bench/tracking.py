"""One Weights & Biases run per sweep, and the tracker that does nothing.

Whether W&B is used, and whether online, is decided by ``check_tracking`` before the first W&B call.
A tracker never costs a result: the first exception stops the tracking, is said in one line, and the
sweep goes on.
"""

from __future__ import annotations

import contextlib
import functools
import netrc
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol

import numpy as np
import pandas as pd

from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.live import LiveCells

if TYPE_CHECKING:
    from lookahead_bench.plan import Plan
    from lookahead_bench.store import Results

MODES = ("auto", "online", "offline", "disabled")
REACH_TIMEOUT_SECONDS = 2.0
INIT_TIMEOUT_SECONDS = 30.0
# A lost network must not hold the command; what was not sent stays on disk for `wandb sync`.
FINISH_TIMEOUT_SECONDS = 120.0
# Each table that is sent is a file of its own: cells that finish together go together, and while
# the sweep runs the table is sent now and then.
TABLE_SECONDS = 2.0
LIVE_SECONDS = 60.0

CELL_COLUMNS = (
    "dataset", "label", "strategy", "window", "ngram", "branches", "executor", "dtype",
    "tokens_per_second", "speedup", "speedup_low", "speedup_high", "verdict", "step_compression",
    "step_cost", "nodes_per_step", "equivalence_rate", "noise_floor", "shared_pool", "prompts", "rows_measured",
    "failures", "mismatches", "note",
)  # fmt: skip
FAILURE_COLUMNS = ("dataset", "prompt_id", "turn", "repeat", "label", "executor", "error")
LIVE_METRICS = ("tokens_per_second/*", "step_compression/*", "failed_rows")
SUMMARY_METRICS = ("tokens_per_second", "speedup", "step_compression", "step_cost", "equivalence_rate")


class Tracker(Protocol):
    """What the harness tells of a sweep while it runs.

    Attributes:
        folder: where the tracker keeps its files; None if it keeps none.
        url: the run's page; None unless online.
    """

    folder: Path | None
    url: str | None

    def start(
        self, name: str, group: str, config: Mapping[str, Any], plan: Plan, stored: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Open the run: ``name`` of the run, ``group`` the sweep, ``config`` the resolved settings.

        ``stored``: rows of an earlier, interrupted run of the same plan. Those without an error count as done.
        """

    def row(self, row: Mapping[str, Any]) -> None:
        """One finished row of the store (a prompt, turn and repeat of a cell)."""

    def cell(self, summary_row: Mapping[str, Any]) -> None:
        """One finished cell: its row of the summary. Told again, it replaces what was told before."""

    def finish(self, results: Results | None, figures: Sequence[Path], exit_code: int) -> None:
        """Close the run; ``results`` is None where the sweep did not come to its end."""


class NullTracker:
    """Tracks nothing."""

    folder: Path | None = None
    url: str | None = None

    def start(
        self, name: str, group: str, config: Mapping[str, Any], plan: Plan, stored: Sequence[Mapping[str, Any]] = ()
    ) -> None: ...

    def row(self, row: Mapping[str, Any]) -> None: ...

    def cell(self, summary_row: Mapping[str, Any]) -> None: ...

    def finish(self, results: Results | None, figures: Sequence[Path], exit_code: int) -> None: ...


def check_tracking(mode: str) -> str:
    """Decide how W&B is used, without calling it: ``online``, ``offline`` or ``disabled``.

    ``auto`` is online only if an API key is configured and the host answers within
    REACH_TIMEOUT_SECONDS; W&B's own WANDB_MODE (offline, disabled) is honoured by it.

    Raises:
        ConfigError: an unknown mode.
        InputError: ``online`` without a key, or with a host that can't be reached.
    """
    if mode not in MODES:
        raise ConfigError("tracking.wandb", mode, "one of " + ", ".join(MODES))
    if mode == "auto" and os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return os.environ["WANDB_MODE"]
    if mode in ("offline", "disabled"):
        return mode
    url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    has_key = _has_api_key(url)
    if has_key and _reachable(url):
        return "online"
    if mode == "auto":
        return "offline"
    reason = f"{url} can't be reached" if has_key else "no API key (WANDB_API_KEY or netrc)"
    raise InputError(f"tracking.wandb='online': {reason}; use auto, offline or disabled, or set it up")


def make_tracker(mode: str, run_folder: Path | str, project: str) -> Tracker:
    """A tracker whose files go into ``run_folder/wandb``.

    Args:
        mode: one of MODES, or what ``check_tracking`` made of it.
        run_folder: the folder of this run in the results store.
        project: W&B project.

    Raises:
        InputError: as ``check_tracking``.
    """
    decided = check_tracking(mode)
    return NullTracker() if decided == "disabled" else WandbTracker(decided, Path(run_folder), project)


P = ParamSpec("P")


def _guarded(
    method: Callable[Concatenate[WandbTracker, P], None],
) -> Callable[Concatenate[WandbTracker, P], None]:
    """Let no exception of the tracker reach the sweep; after the first one do nothing more."""

    @functools.wraps(method)
    def call(self: WandbTracker, *args: P.args, **kwargs: P.kwargs) -> None:
        if self._stopped:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._stop(error)

    return call


class WandbTracker:
    """One W&B run, online or offline. See Tracker for the methods.

    The run's id is kept in ``wandb/run_id``, so that a resumed sweep goes on in the same W&B run; its
    next step in ``wandb/next_step``, because offline there is no server that knows it.
    """

    def __init__(self, mode: str, run_folder: Path, project: str) -> None:
        self.folder: Path | None = run_folder / "wandb"
        self.url: str | None = None
        self._mode, self._run_folder, self._project = mode, run_folder, project
        self._stopped = False
        self._rows = self._failures = 0
        self._live = LiveCells()
        self._step: int | None = None
        self._run: Any = None
        self._wandb: Any = None
        self._cells: dict[str, list[Any]] = {}
        self._sent_cells: dict[str, list[Any]] = {}
        self._sent_at = float("-inf")

    @_guarded
    def start(
        self, name: str, group: str, config: Mapping[str, Any], plan: Plan, stored: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        # wandb's own defaults are other ones: a benchmark sends no crash reports unless it is asked
        # to, and the terminal belongs to its progress bar.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            mode=self._mode,
            project=self._project,
            name=name,
            group=group,
            job_type="sweep",
            tags=_tags(plan),
            config={**config, "plan_id": plan.plan_id, "cells": [cell.label for cell in plan.cells]},
            dir=str(self._run_folder),
            id=self._run_id(),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                init_timeout=INIT_TIMEOUT_SECONDS,
                finish_timeout=FINISH_TIMEOUT_SECONDS,
                finish_timeout_raises=True,
                # Sampling the machine would disturb what is measured; host, user, paths, source
                # and git remote are nobody's business. Provenance has the versions.
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        if self._mode == "online":
            self.url = self._run.url
        self._run.define_metric("rows_done")
        for metric in LIVE_METRICS:
            self._run.define_metric(metric, step_metric="rows_done")
        if self._mode == "offline":
            self._step = self._next_step()
        for row in stored:
            if not _plain(row["error"]):
                self._rows += 1
                self._live.add(row)

    @_guarded
    def row(self, row: Mapping[str, Any]) -> None:
        self._rows += 1
        self._failures += bool(_plain(row["error"]))
        self._live.add(row)
        metrics: dict[str, float] = {"rows_done": self._rows, "failed_rows": self._failures}
        decoded = 0 if _plain(row["error"]) else row["new_tokens"] - 1
        if decoded > 0:
            name = _metric_name(row)
            metrics[f"tokens_per_second/{name}"] = decoded / row["decode_seconds"]
            metrics[f"step_compression/{name}"] = decoded / row["decode_steps"]
        self._log(metrics)
        if time.monotonic() - self._sent_at >= LIVE_SECONDS:
            for cell_id, line in self._live.lines().items():
                self._keep_cell(cell_id, line)
            self._send_cells()

    @_guarded
    def cell(self, summary_row: Mapping[str, Any]) -> None:
        self._keep_cell(summary_row["cell_id"], summary_row)
        if time.monotonic() - self._sent_at >= TABLE_SECONDS:
            self._send_cells()

    @_guarded
    def finish(self, results: Results | None, figures: Sequence[Path], exit_code: int) -> None:
        if self._run is None:
            return
        if results is not None:
            self._log_results(results)
        self._log({f"plots/{path.stem}": self._wandb.Image(str(path)) for path in figures})
        self._run.finish(exit_code=exit_code)
        self._run = None

    def _log_results(self, results: Results) -> None:
        self._run.config.update({"provenance": results.provenance}, allow_val_change=True)
        summary = results.summary
        for cell in summary.to_dict("records"):
            self._keep_cell(cell["cell_id"], cell)
        self._log_failures(results)
        if self._cells != self._sent_cells:
            self._send_cells()
        for cell in summary.to_dict("records"):
            name = _metric_name(cell)
            for metric in SUMMARY_METRICS:
                self._run.summary[f"summary/{metric}/{name}"] = _plain(cell[metric])
            accepted = results.steps.loc[results.steps["cell_id"] == cell["cell_id"], "accepted"]
            if not accepted.empty:
                self._log({f"acceptance/{name}": self._histogram(accepted.to_numpy())})
        methods = summary[~summary["is_baseline"] & (summary["strategy"] != "vllm_control")]
        for dataset, cells in methods.dropna(subset="speedup").groupby("dataset"):
            best = cells.loc[cells["speedup"].idxmax()]
            self._run.summary[f"best/{dataset}/speedup"] = float(best["speedup"])
            self._run.summary[f"best/{dataset}/method"] = str(best["label"])

    def _log_failures(self, results: Results) -> None:
        """How many rows failed and which cells have some, in the summary; each with its error in a table."""
        failed = results.rows[results.rows["error"].notna()]
        cells = results.summary[results.summary["failures"] > 0]
        self._run.summary["failed_rows"] = len(failed)
        self._run.summary["failed_cells"] = [_metric_name(cell) for cell in cells.to_dict("records")]
        if len(failed):
            lines = [[_plain(value) for value in line] for line in failed[list(FAILURE_COLUMNS)].itertuples(index=False)]
            self._log({"failures": self._wandb.Table(columns=list(FAILURE_COLUMNS), data=lines)})
            self._run.tags = (*self._run.tags, "failures")

    def _keep_cell(self, cell_id: str, line: Mapping[str, Any]) -> None:
        self._cells[cell_id] = [_plain(line.get(column)) for column in CELL_COLUMNS]

    def _log(self, metrics: Mapping[str, Any]) -> None:
        self._run.log(dict(metrics), step=self._step)
        if self._step is not None:
            self._step += 1
            (self._run_folder / "wandb" / "next_step").write_text(str(self._step))

    def _next_step(self) -> int:
        path = self._run_folder / "wandb" / "next_step"
        return int(path.read_text()) if path.is_file() else 0

    def _send_cells(self) -> None:
        """Send the table whole: what is there can be read while the sweep runs."""
        table = self._wandb.Table(columns=list(CELL_COLUMNS), data=list(self._cells.values()))
        self._log({"cells": table})
        self._sent_cells, self._sent_at = dict(self._cells), time.monotonic()

    def _histogram(self, accepted: np.ndarray) -> Any:
        """Steps by emitted tokens: bin k is centred on k tokens."""
        counts = np.bincount(accepted)
        return self._wandb.Histogram(np_histogram=(counts, np.arange(len(counts) + 1) - 0.5))

    def _run_id(self) -> str:
        path = self._run_folder / "wandb" / "run_id"
        if path.exists():
            return path.read_text().strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        run_id = uuid.uuid4().hex[:8]
        path.write_text(run_id)
        return run_id

    def _stop(self, error: Exception) -> None:
        self._stopped = True
        reason = " ".join(str(error).split())[:200]
        print(
            f"W&B tracking stopped ({type(error).__name__}: {reason}); the results are not affected",
            file=sys.stderr,
        )
        if self._wandb is not None:
            # Ends the run as failed, and W&B's process with it: a next job starts with a sound one.
            # What is wrong has been said; closing a broken tracker may fail as well.
            with contextlib.suppress(Exception):
                self._wandb.teardown(exit_code=1)


def _tags(plan: Plan) -> list[str]:
    """Strategies, data sets and dtypes of the plan, each once; W&B takes at most 64 characters a tag."""
    tags = [tag for cell in plan.cells for tag in (cell.strategy.name, cell.dataset, cell.engine.dtype)]
    return list(dict.fromkeys(tag[:64] for tag in tags))


def _metric_name(cell: Mapping[str, Any]) -> str:
    """ "humaneval/lookahead_W5_N3_G5": a metric's name in W&B, without blanks or other odd characters."""
    parts = [cell["dataset"], cell["label"]]
    if cell["executor"] == "fork":
        parts.append("fork")
    return "/".join(re.sub(r"[^\w.-]+", "_", str(part)) for part in parts)


def _plain(value: Any) -> Any:
    """A plain Python value for W&B; None where there is none."""
    if value is None or pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _has_api_key(url: str) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            entry = netrc.netrc(path).authenticators(urllib.parse.urlsplit(url).hostname or "")
        except (OSError, netrc.NetrcParseError):
            continue
        if entry and entry[2]:
            return True
    return False


def _reachable(url: str, timeout_seconds: float = REACH_TIMEOUT_SECONDS) -> bool:
    """Whether the host answers in time; the environment's proxies are used as W&B uses them."""
    outcome: list[bool] = []
    # A thread, because the look-up of a name has no time limit of its own.
    thread = threading.Thread(target=lambda: outcome.append(_answers(url, timeout_seconds)), daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return outcome == [True]


def _answers(url: str, timeout_seconds: float) -> bool:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method="HEAD"), timeout=timeout_seconds
        ):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False
