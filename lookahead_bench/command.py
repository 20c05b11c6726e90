"""One run from its configuration to its exit status: the order of things, and what the user sees of it."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from omegaconf import DictConfig
from rich.console import Console

from lookahead_bench.config import Config, from_hydra
from lookahead_bench.errors import ConfigError, EngineError, InputError

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

    from lookahead_bench.models import ModelSource
    from lookahead_bench.plan import Plan
    from lookahead_bench.progress import RunProgress
    from lookahead_bench.records import Prompt
    from lookahead_bench.store import Results, ResultStore
    from lookahead_bench.tracking import Tracker

WELL, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class RunBroke(RuntimeError):
    """An unexpected exception ended a run; its traceback is in the log at ``log``."""

    def __init__(self, error: Exception, log: Path) -> None:
        super().__init__(f"{type(error).__name__}: {_one_line(error)} (traceback in {log})")


def run_to_status(config: DictConfig) -> int:
    """Run, and turn every failure into one line on stderr and an exit status.

    Returns:
        0 well; 1 a result that must not be, or something broke; 2 bad input, or no room to write.
    """
    try:
        return run(config)
    except InputError as error:
        return _say(_one_line(error), BAD_INPUT)
    except (EngineError, RunBroke) as error:
        return _say(_one_line(error), FAILED)
    except Exception as error:
        if is_no_room(error):
            return _say(f"{error.filename or 'results_dir'}: {error.strerror}; what was finished before is kept", BAD_INPUT)
        traceback.print_exc()
        return _say(f"{type(error).__name__}: {_one_line(error)}", FAILED)


def is_no_room(error: Exception) -> bool:
    """Whether writing failed because a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def run(cfg: DictConfig) -> int:
    """One run: check, resolve, plan, measure, report.

    Returns:
        0, or 1 if a result is there that must not be (see ``judge``).

    Raises:
        InputError: known before an engine is started.
        EngineError: an engine could not be started or died for good.
        OSError: the results can't be written.
        RunBroke: anything else, after the run's folder was made.
    """
    config = from_hydra(cfg)
    os.environ.update(_QUIET)
    from lookahead_bench.data import load_prompts
    from lookahead_bench.estimate import estimate, print_plan
    from lookahead_bench.engine.checks import model_config
    from lookahead_bench.lengths import check_lengths, check_token_ids
    from lookahead_bench.models import load_tokenizer, resolve_model
    from lookahead_bench.plan import build_plan
    from lookahead_bench.provenance import versions
    from lookahead_bench.report.words import plural
    from lookahead_bench.store import ResultStore
    from lookahead_bench.tracking import check_tracking

    console = Console()
    tracking = check_tracking(config.tracking.wandb)
    # Prompts first: making the model ready can take a while, reading them does not.
    prompts = load_prompts(config.dataset, config.run.seed)
    if config.quality.pass_at_1 and not config.run.dry:
        _check_quality(prompts)
    model = resolve_model(config.model)
    tokenizer = load_tokenizer(model)
    # A model may have more rows of embeddings than its tokenizer has tokens, or fewer.
    vocabulary = max(len(tokenizer), int(model_config(model.path).get("vocab_size") or 0))
    check_token_ids(prompts, vocabulary, config.dataset.get("path"))
    notes = check_lengths(prompts, tokenizer, config.engine.max_model_len, config.decode.max_new_tokens)
    for note in notes:
        _print(console, f"note: {note}")
    plan = build_plan(config, model, versions() or {}, prompts)
    for note in plan.notes:
        _print(console, f"note: {note}")
    if config.run.dry:
        print_plan(plan, prompts, estimate(plan, prompts, model, config.results_dir), console)
        return WELL
    # Not before: a dry run needs no vLLM.
    from lookahead_bench.engine import check_engine
    from lookahead_bench.engine.settings import runs_eagerly

    for engine in plan.engines:
        check_engine(engine)
    if config.engine.enforce_eager is None and runs_eagerly(None):
        _print(console, "note: no C++ compiler with Python's headers found: engines run uncompiled, which is slower")
    for dataset, items in prompts.items():
        if len(items) < max(config.concurrency):
            _print(
                console,
                f"note: {dataset}: {max(config.concurrency)} requests at once are never reached "
                f"with {plural(len(items), 'prompt')}",
            )
    try:
        store = ResultStore.open_run(config.results_dir, plan.sweep, plan.plan_id, fresh=config.run.fresh)
    except OSError as error:
        if is_no_room(error):
            raise
        why = f"{error.filename or config.results_dir}: {error.strerror or error}"
        raise ConfigError("results_dir", str(config.results_dir), f"a folder that can be written ({why})") from error
    with store, _log_file(store.folder / "logs" / "command.log"):
        return _measure_and_report(config, plan, prompts, tokenizer, model, store, tracking, console)


def judge(summary: pd.DataFrame) -> list[str]:
    """What makes the exit status 1, in words; nothing if all is well.

    - a float32 output that differs from plain decoding's;
    - a request that failed;
    - equal float32 outputs of which one passes its tests and the other does not;
    - a method of the plug-in that took steps and never drafted, over all data sets together.
    """
    from lookahead_bench.stats import drafted_nothing

    found = []
    wrong = int(summary.loc[summary["dtype"] == "float32", "mismatches"].sum())
    if wrong:
        found.append(f"float32 outputs that differ from plain decoding: {wrong}")
    failures = int(summary["failures"].sum())
    if failures:
        found.append(f"failed requests: {failures}")
    found += _quality_conflicts(summary)
    plugin = summary[summary["executor"] != "stock"]
    for label, cells in plugin.groupby("label", sort=False):
        took_steps = float(cells["step_compression"].notna().sum())
        if drafted_nothing(cells["strategy"], took_steps, float(cells["drafted"].sum())):
            found.append(f"{label} drafted nothing at all")
    return found


def _quality_conflicts(summary: pd.DataFrame) -> list[str]:
    """Cells that pass other problems than plain decoding does, though every one of their outputs is equal."""
    if "passes_gained" not in summary:
        return []
    equal = summary[(summary["dtype"] == "float32") & (summary["equivalence_rate"] == 1)]
    changed = equal[(equal["passes_gained"] > 0) | (equal["passes_lost"] > 0)]
    return [f"{label} passes other problems than plain decoding with the same tokens" for label in changed["label"]]


def _check_quality(prompts: Mapping[str, Sequence[Prompt]]) -> None:
    from lookahead_bench.quality.sandbox import check_sandbox
    from lookahead_bench.quality.score import problem_of

    if not any(problem_of(prompt) for items in prompts.values() for prompt in items):
        raise ConfigError("quality.pass_at_1", True, "false where no prompt has tests (those of humaneval have)")
    check_sandbox()


def _score(
    store: ResultStore, prompts: Mapping[str, Sequence[Prompt]], tokenizer: PreTrainedTokenizerBase, progress: RunProgress
) -> None:
    """pass@1, untimed and after everything that is measured."""
    from lookahead_bench.quality.sandbox import isolation
    from lookahead_bench.quality.score import score

    store.write_provenance({"quality": isolation()})
    score(store, prompts, tokenizer, tell=lambda done, total: progress.phase(f"tests · answer {done} of {total}"))


def _measure_and_report(
    config: Config,
    plan: Plan,
    prompts: Mapping[str, Sequence[Prompt]],
    tokenizer: PreTrainedTokenizerBase,
    model: ModelSource,
    store: ResultStore,
    tracking: str,
    console: Console,
) -> int:
    """Measure into the store, then show what it holds. The tracker is closed whatever happens."""
    from lookahead_bench.cost.library import step_costs
    from lookahead_bench.cost.report import report_cost
    from lookahead_bench.estimate import generations
    from lookahead_bench.measure import measure
    from lookahead_bench.progress import make_progress
    from lookahead_bench.provenance import collect, resumed
    from lookahead_bench.tracking import make_tracker

    store.write_config(yaml.safe_dump(dict(config.resolved), sort_keys=False))
    costs = step_costs(plan.engines, model, config.results_dir, store.folder.name)
    store.write_provenance(resumed(store.provenance(), collect(plan, model, prompts)) | {"step_costs": costs})
    if len(store.done()) == sum(generations(cell, plan, prompts) for cell in plan.cells):
        _print(console, "all outputs are there from an earlier run of this plan (run.fresh=true measures anew)")
    tracker = make_tracker(tracking, store.folder, config.tracking.project)
    tracker.start(store.folder.name, plan.sweep, config.resolved, plan, store.rows())
    results, figures, found, status = None, [], [], FAILED
    try:
        with make_progress() as progress:
            measure(plan, prompts, tokenizer, store, tracker, progress, store.folder / "logs", model)
            if config.quality.pass_at_1:
                _score(store, prompts, tokenizer, progress)
        report_cost(store, plan, model, config.results_dir, console)
        results, figures, found = _report(store, config.run.seed, console)
        # Cells take turns on every prompt, so all of them finish together.
        for cell in results.summary.to_dict("records"):
            tracker.cell(cell)
        status = FAILED if found else WELL
    except KeyboardInterrupt:
        status = INTERRUPTED
        raise
    finally:
        tracker.finish(results, figures, status)
    _print_places(store.folder, figures, tracker, console)
    for line in found:
        _say(line, status)
    return status


def _report(store: ResultStore, seed: int, console: Console) -> tuple[Results, list[Path], list[str]]:
    """Summary, plots, page and table of what the store holds; and what is wrong with it."""
    from lookahead_bench.report.html import write_html
    from lookahead_bench.report.plots import draw_all
    from lookahead_bench.report.table import print_table
    from lookahead_bench.stats import summarise
    from lookahead_bench.store import load_results

    summary = summarise(*store.frames(), seed, store.provenance().get("step_costs") or ())
    store.write_summary(summary)
    results = load_results(store.folder)
    figures = draw_all(results)
    write_html(results)
    print_table(results, console)
    return results, figures, judge(summary)


def _print_places(folder: Path, figures: Sequence[Path], tracker: Tracker, console: Console) -> None:
    places = {"results": folder, "report": folder / "report.html"}
    places |= {f"plot {figure.stem}": figure for figure in figures}
    if tracker.folder is not None:
        places["W&B"] = tracker.url or tracker.folder
    width = max(map(len, places))
    for name, place in places.items():
        _print(console, f"{name:<{width}}  {place}")


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Keep the log of this process in a file, and the traceback of what is not expected."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    except (InputError, EngineError):
        raise
    except Exception as error:
        if is_no_room(error):
            raise
        root.exception("the run broke")
        raise RunBroke(error, path) from error
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        handler.close()


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _say(line: str, status: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return status


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
