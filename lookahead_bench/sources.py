"""Which files a method's results come from, as one digest: a part of a cell's identity.

A version number says nothing of an edited file. With the digest an edited method, or an edited engine,
is other work, and rows that the code before the edit made are not taken for its own. Files are taken byte by byte: an edited
comment measures anew as well, which costs time, and never a wrong number.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from lookahead_bench.strategy import find_strategy

PACKAGE = Path(__file__).resolve().parent
PROJECT = (PACKAGE.name, "strategies")
INSTALLED = "site-packages"
ASKED = ("asking.py", "data/encode.py", "engine/session.py", "engine/settings.py", "engine/sampling.py")
"""What every engine is asked and how its answers are counted and timed, the stock engine's too."""
VERIFYING = ("tree.py", "verify.py", "pools.py", "engine")
"""What turns a method's drafts into output: files and folders."""
_CODE = (".py", ".cpp", ".h")


def source_digest(method: str, is_stock: bool) -> str:
    """Digest of the code that a method's rows depend on.

    Args:
        method: its name.
        is_stock: whether it is the stock engine's own, which has no file here.

    Raises:
        ConfigError: no method of the plug-in has that name.
    """
    files = set(_files(ASKED))
    if not is_stock:
        files |= {*_files(VERIFYING), *module_files(find_strategy(method).__module__)}
    return digest(files)


def digest(files: Iterable[Path]) -> str:
    """Hash of files' names and contents, in whatever order they are given; where they lie doesn't count."""
    contents = sorted((f"{path.parent.name}/{path.name}", path.read_bytes()) for path in set(files))
    total = hashlib.sha256()
    for name, content in contents:
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def module_files(name: str) -> set[Path]:
    """The file of an imported module, and those of the modules of this project that it imports, and so on.

    Modules that aren't this project's count where they are of the same package as ``name``, or lie beside or below its
    file and not among installed packages.
    """
    packages = {*PROJECT, name.partition(".")[0]}
    beside = Path(str(sys.modules[name].__file__)).parent
    found: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        module = sys.modules.get(current := waiting.pop())
        file = getattr(module, "__file__", None)
        if current in found or file is None:
            continue
        own = Path(file).is_relative_to(beside) and INSTALLED not in Path(file).parts
        if not own and current.partition(".")[0] not in packages:
            continue
        found[current] = Path(file)
        waiting += _imported(Path(file))
    return set(found.values())


def _imported(path: Path) -> Iterator[str]:
    """Every name that could be a module which the file imports."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(names: Iterable[str]) -> Iterator[Path]:
    for path in (PACKAGE / name for name in names):
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.suffix in _CODE)
        elif path.is_file():
            yield path
