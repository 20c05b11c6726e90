"""Builds the suffix tree that vLLM's own `suffix` method imports; `python tools/suffix_tree.py` with .venv's Python.

arctic-inference is published as source only, and its full build wants a CUDA machine's parts. The method needs
its folder ``suffix_decoding`` alone, with one C++ extension; that is what is installed here. No package
metadata is written: its entry point would have vLLM load Arctic's other plug-ins.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

SOURCE = "arctic-inference==0.3.0"
NANOBIND = "nanobind==2.9.2"
PACKAGE = Path(sysconfig.get_paths()["platlib"]) / "arctic_inference"
FAILED = Path(sys.prefix) / "suffix_tree.failed"
"""Says why there is no tree, so that a test is left out for this reason and for no other."""


def main() -> int:
    FAILED.unlink(missing_ok=True)
    if (PACKAGE / "suffix_decoding").exists():
        return 0
    try:
        with tempfile.TemporaryDirectory() as work:
            build(Path(work))
    except (OSError, StopIteration, tarfile.TarError, subprocess.CalledProcessError) as error:
        # StopIteration: a file that the build should have left is not there, and says nothing itself.
        last = (getattr(error, "stderr", "") or str(error) or "the build left no extension").strip().splitlines()[-1]
        FAILED.write_text(last)
        print(f"suffix tree: not built, vllm_suffix can't run; it needs a C++20 compiler and cmake ({last})", file=sys.stderr)
        return 1
    return 0


def build(work: Path) -> None:
    """Fetch the source, compile the extension and put the folder into this Python's packages."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    run(*pip, "install", "--no-deps", "--target", work / "nanobind", NANOBIND)
    # pip asks a source package for its metadata; the environment has what this one's setup.py imports.
    run(*pip, "download", "--no-deps", "--no-binary=:all:", "--no-build-isolation", "--dest", work, SOURCE)
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        archive.extractall(work, filter="data")
    source = next(work.glob("arctic_inference-*/"))
    environment = os.environ | {"PYTHONPATH": str(work / "nanobind")}
    run(
        "cmake", "-S", source / "csrc" / "suffix_decoding", "-B", work / "build",
        f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release", env=environment,
    )
    run("cmake", "--build", work / "build", "--parallel", "2", env=environment)
    package = source / "arctic_inference"
    shutil.copy(next((work / "build").glob("_C*.so")), package / "suffix_decoding")
    PACKAGE.mkdir(exist_ok=True)
    shutil.copy(package / "__init__.py", PACKAGE)
    # Renamed into place, so that an interrupted copy is never taken for the whole.
    unfinished = PACKAGE / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(package / "suffix_decoding", unfinished)
    unfinished.rename(PACKAGE / "suffix_decoding")


def run(*command: object, env: dict[str, str] | None = None) -> None:
    subprocess.run(
        [str(part) for part in command], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )


if __name__ == "__main__":
    sys.exit(main())
