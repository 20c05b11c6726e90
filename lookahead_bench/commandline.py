"""The command line before Hydra sees it: short forms are written out and mistakes are said in one line.

Hydra's own messages take several lines and come with exit status 1, some of them after a job has
started. So the jobs are composed here once, only to be checked, and Hydra then composes them again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lookahead_bench.checks import check_method, is_import_path, nearest
from lookahead_bench.config import CONF, Config, from_hydra, options, register_methods
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.methods import planned_methods

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PLAIN = re.compile(r"[\w./@+-]+", re.ASCII)


def rewrite(argv: Sequence[str]) -> list[str]:
    """Write short forms out.

    - ``model=X`` with X not a file of conf/model becomes ``model=custom model.path=X``; Hydra could
      not read a path or a hub id as the name of a group's option.
    - ``strategy=module:Class`` becomes ``strategy=autoregressive strategy.name=module:Class``: the keys of a method
      without parameters, under another name. What ``strategy.KEY=VALUE`` then sets is added, since no file has it.
    - ``sweep=X`` becomes ``+sweep=X``: sweep is a group that is not chosen by default.
    - ``--multirun`` may stand anywhere.
    - ``--cfg job`` shows values, not interpolations.

    Raises:
        ConfigError: X is no model that is known, no existing path and no hub id, or no import path can look as
            module:Class does.
    """
    multirun = "--multirun" in argv or "-m" in argv
    own = any(argument.startswith("strategy=") and is_import_path(argument) for argument in argv)
    out: list[str] = []
    for argument in argv:
        key, equals, value = argument.partition("=")
        if key == "model" and equals:
            out += _model(value, multirun)
        elif key == "strategy" and own:
            out += _own_method(value, multirun)
        elif key.startswith("strategy.") and own:
            out.append(f"++{argument}")
        elif key == "sweep" and equals and value not in ("null", ""):
            out.append(f"+{argument}")
        else:
            out.append(argument)
    shows = "--cfg" in argv or "-c" in argv or any(a.startswith(("--cfg=", "-c=")) for a in argv)
    if shows and "--resolve" not in argv:
        out.append("--resolve")
    # Hydra reads no flag between two overrides.
    return sorted(out, key=lambda argument: argument not in ("--multirun", "-m"))


def _model(value: str, multirun: bool) -> list[str]:
    known = options("model")
    names = value.split(",") if multirun and "," in value else [value]
    if all(name in known for name in names):
        return [f"model={value}"]
    if any(name in known for name in names):
        raise ConfigError(
            "model", value, "either names of conf/model only or paths and hub ids only, in one multirun"
        )
    return ["model=custom", "model.path=" + ",".join(_quote(_model_path(name)) for name in names)]


def _model_path(value: str) -> str:
    path = Path(value).expanduser()
    if value and path.exists():
        return str(path)
    if _HUB_ID.fullmatch(value):
        return value
    known = ", ".join(name for name in options("model") if name != "custom")
    raise ConfigError("model", value, f"one of {known}, an existing path, or a hub id such as org/name")


def _own_method(value: str, multirun: bool) -> list[str]:
    names = value.split(",") if multirun else [value]
    if not all(map(is_import_path, names)):
        raise ConfigError("strategy", value, "either names of conf/strategy only or module:Class only, in one multirun")
    paths = ",".join(_quote(check_method("strategy", name)) for name in names)
    return ["strategy=autoregressive", f"strategy.name={paths}"]


def _quote(value: str) -> str:
    """A string as a value in Hydra's grammar, which takes backslashes as they are except before a quote."""
    if _PLAIN.fullmatch(value):
        return value
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value) + "'"


def preflight(argv: Sequence[str]) -> list[Config]:
    """Compose and check every job that Hydra will run; empty where nothing is run (``--help``).

    Args:
        argv: the rewritten command line.

    Raises:
        InputError: an override that can't be read, an unknown key, option or value.
    """
    arguments = get_args_parser().parse_args(list(argv))
    if arguments.help or arguments.hydra_help or arguments.shell_completion:
        return []
    if arguments.info or arguments.config_path or arguments.config_name or arguments.config_dir:
        # Another configuration than conf/: each job checks itself when it starts.
        return []
    register_methods()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        jobs = [(_compose(job), job) for job in _jobs(arguments)]
    if arguments.cfg:
        return []
    configs = [check_overrides(from_hydra(config), job) for config, job in jobs]
    for config in configs:
        planned_methods(config)
    return configs


def check_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Refuse a value that would be put aside.

    Raises:
        InputError: ``strategy.X`` is given beside ``sweep.X``, or ``methods.NAME.X`` of the chosen
            method, whose parameters are ``strategy.X``, or either beside a list in ``sweep.grids``.
    """
    chosen = config.strategy.name
    for override in overrides:
        group, _, parameter = override.partition("=")[0].rpartition(".")
        if group == f"methods.{chosen}":
            raise InputError(f"{override}: {chosen} is the chosen strategy; set strategy.{parameter} instead")
        if group == "strategy" and parameter in config.sweep.axes and config.sweep.strategy == chosen:
            values = list(config.sweep.axes[parameter])
            raise InputError(f"{override}: {parameter} is swept over {values}; set sweep.{parameter} instead")
        method = chosen if group == "strategy" else group.removeprefix("methods.")
        if parameter in config.sweep.grids.get(method, {}):
            values = list(config.sweep.grids[method][parameter])
            raise InputError(f"{override}: {parameter} is swept over {values}; set sweep.grids.{method}.{parameter} instead")
    return config


def _jobs(arguments: argparse.Namespace) -> list[list[str]]:
    """The overrides of each job: one, or with --multirun the product of the lists."""
    parsed = []
    for text in arguments.overrides:
        try:
            parsed += OverridesParser.create().parse_overrides([text])
        except (OverrideParseException, HydraException) as error:
            raise InputError(f"{text!r} can't be read as key=value: {_reason(error)}") from error
    if not arguments.multirun:
        for override in parsed:
            if override.is_sweep_override():
                hint = f"[{override.get_value_string()}]" if override.is_choice_sweep() else "[...]"
                raise InputError(
                    f"{override.input_line}: several values need --multirun, or a list where one is allowed: "
                    f"{override.get_key_element()}={hint}"
                )
        return [list(arguments.overrides)]
    if any(_picks_sweeper(override) for override in parsed):
        # Another sweeper decides later what its jobs are; each job checks itself when it starts.
        return []
    try:
        return BasicSweeper.split_arguments(parsed, None)[0]
    except HydraException as error:
        raise InputError(_reason(error)) from error


def _picks_sweeper(override: Override) -> bool:
    return override.key_or_group.startswith(("hydra/sweeper", "hydra.sweeper"))


def _compose(overrides: list[str]) -> DictConfig:
    try:
        return compose("config", overrides=overrides)
    except MissingConfigException as error:
        raise _unknown_option(error) from error
    except HydraException as error:
        raise _unknown_key(error, overrides) from error
    except (OmegaConfBaseException, ValueError) as error:
        raise InputError(_reason(error)) from error


def _unknown_option(error: MissingConfigException) -> InputError:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    if not options(group):
        return InputError(_reason(error))
    return ConfigError(group, option, "one of " + ", ".join(options(group)))


def _unknown_key(error: HydraException, overrides: list[str]) -> InputError:
    """One line for an override that Hydra could not apply, with the nearest key that exists."""
    match = re.match(r"Could not override '([^']+)'", str(error))
    if match is None:
        return InputError(_reason(error))
    key = match[1]
    named = {text: text.lstrip("+~").partition("=")[0] for text in overrides}
    if key.startswith("sweep.") and "sweep" not in named.values():
        return InputError(f"{key}: no sweep is chosen; choose one with +sweep=NAME")
    rest = [text for text in overrides if named[text] != key]
    try:
        known = _keys(compose("config", overrides=rest))
    except (HydraException, OmegaConfBaseException):
        # Another override is wrong as well; the default configuration has the keys all the same.
        known = _keys(compose("config"))
    return InputError(f"{key}: there is no such key; {nearest(key, known)}")


def _keys(config: DictConfig) -> list[str]:
    """All dotted keys, groups of keys and their members alike."""
    keys: list[str] = []

    def visit(node: object, prefix: str) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                keys.append(f"{prefix}{name}")
                visit(value, f"{prefix}{name}.")

    visit(OmegaConf.to_container(config, resolve=False), "")
    return keys


def _reason(error: Exception) -> str:
    """The first line of a message of Hydra's."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
