"""Checks of single values and keys of the configuration; each raises one line that names the key."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lookahead_bench.errors import ConfigError, InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def nearest(key: str, known: Iterable[str]) -> str:
    """What to say of an unknown key: the nearest known one, or all of its neighbours."""
    known = [name for name in known if not key.startswith(f"{name}.")]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    prefix = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == prefix] or known
    return "known are " + ", ".join(siblings)


def check_keys(prefix: str, node: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse keys below ``prefix`` that are not known, and known ones that are not there."""
    full = [f"{prefix}{name}" for name in known]
    for name in node:
        if f"{prefix}{name}" not in full:
            raise InputError(f"{prefix}{name}: there is no such key; {nearest(f'{prefix}{name}', full)}")
    for name in full:
        if name.removeprefix(prefix) not in node:
            raise InputError(f"{name}: the key is missing")


def check_choice(key: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is none of ``allowed``."""
    if value not in allowed:
        raise ConfigError(key, value, "one of " + ", ".join(allowed))


def check_number(key: str, value: object, low: float, high: float, or_else: str = "") -> None:
    """Refuse what is no number in [low, high]; ``or_else`` says in the message what else would do."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(key, value, f"{or_else}a number from {low:g} to {high:g}")


def check_name(key: str, value: object) -> str:
    """Return a name that can be one of a folder or a W&B project, else refuse it."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(key, value, "a name of at most 64 letters, digits, '_', '-' and '.'")
    return value


def check_method(key: str, value: object) -> str:
    """Return what can be a method's name, or the ``module:Class`` of one that is not the project's, else refuse it."""
    if not is_import_path(value):
        return check_name(key, value)
    if not _IMPORT_PATH.fullmatch(str(value)):
        raise ConfigError(key, value, "module:Class, such as bigram:Bigram for the class Bigram of bigram.py")
    return str(value)


def is_import_path(value: object) -> bool:
    """Whether a method is named by ``module:Class``, not by a name of the ``strategies`` folder or the stock engine."""
    return isinstance(value, str) and ":" in value


def check_folder(key: str, value: object) -> Path:
    """Return the path of a folder that is there or can be made, else refuse it."""
    if not isinstance(value, str) or not value:
        raise ConfigError(key, value, "the path of a folder")
    path = Path(value).expanduser()
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(key, value, f"the path of a folder that can be written ({existing} is none)")
    return path
