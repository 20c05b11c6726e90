"""Builds the C++ kernels once per source, compiler, torch and processor, and keeps them in the cache."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from lookahead_bench.cache import find_folder, make_folder
from lookahead_bench.errors import InputError

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
FLAGS = ("-O3", "-march=native", "-fopenmp", "-std=c++20", "-shared", "-fPIC")
_LIBRARY = "kernels.so"


def pays() -> bool:
    """Whether the kernels are faster than vLLM's here: with AVX-512, for which they are written. With AVX2 they are slower."""
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@cache
def can_build() -> bool:
    """Whether the kernels are there, or can be built here: it needs g++ (or ``$CXX``) and Linux on x86-64.

    Builds them where they are not there yet, which takes about 15 seconds, since nothing less tells.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        built()
    except (OSError, subprocess.CalledProcessError, InputError):
        return False
    return True


def built() -> Path:
    """The shared library with the kernels; loading it by ``torch.ops.load_library`` registers them.

    Raises:
        OSError: there is no compiler.
        CalledProcessError: it fails.
        InputError: the cache can't be written.
    """
    name = _name()
    folder = find_folder("kernels", name) or make_folder("kernels", name, _compile)
    return folder / _LIBRARY


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _name() -> str:
    """A hash of all that the library depends on; the flags stand for the processor's instruction sets."""
    target = subprocess.run(
        [_compiler(), "-march=native", "-Q", "--help=target"], capture_output=True, text=True, check=True
    ).stdout
    compiler = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    parts = (*(file.read_text() for file in (*SOURCES, *HEADERS)), *FLAGS, target, compiler, version("torch"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(folder: Path) -> None:
    # Found, not imported: whoever only asks whether kernels can be built does not load torch.
    torch = Path(find_spec("torch").origin).parent
    command = [_compiler(), *FLAGS, f"-I{torch / 'include'}", *map(str, SOURCES), "-o", str(folder / _LIBRARY)]
    # One OpenMP runtime per process: at run time the symbols are those of the one that torch computes with.
    command += [f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, capture_output=True, text=True, check=True)
