"""Sets up .venv from the lock file and converts the default model; `make setup` runs it.

Does nothing if the environment is the one that the lock, pyproject.toml and this Python ask for.
What was begun and not finished, or was made from another lock, is made again from nothing.
Needs a bare Python with venv, no shell tools.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

MIN_PYTHON = (3, 11)
FREE_BYTES = 6 * 10**9
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where torch's +cpu builds are, for those whose pip isn't configured with a place that has them."""

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
LOG = VENV / "setup.log"
LOCK = ROOT / "requirements-cpu.lock"


class SetupError(Exception):
    """One line for the user."""


def main() -> int:
    if sys.version_info < MIN_PYTHON:
        print(f"make setup: Python {sys.version.split()[0]} is too old, 3.11 or newer is needed (make PYTHON=...)")
        return 2
    with Path(__file__).open() as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # a second `make setup` waits for the first
        try:
            set_up()
        except SetupError as error:
            print(f"make setup: {error}", file=sys.stderr)
            return 2
    return 0


def set_up() -> None:
    wanted = {"environment": digest(LOCK, sys.version, ROOT), "project": digest(ROOT / "pyproject.toml")}
    made = read_stamp()
    if made == wanted:
        return
    started = time.monotonic()
    if made.get("environment") != wanted["environment"]:
        make_environment()
    say("installing the project")
    pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    say("converting the default model (once; kept in the cache)")
    if subprocess.run([PYTHON, ROOT / "tools" / "default_model.py"], stdin=subprocess.DEVNULL).returncode:
        raise SetupError("the default model could not be converted, see the line above")
    say("building the suffix tree that vLLM's own suffix decoding needs (where there is a C++ compiler)")
    # Only vllm_suffix needs it, so a failure, which it tells in one line, costs that method and nothing else.
    subprocess.run([PYTHON, ROOT / "tools" / "suffix_tree.py"], stdin=subprocess.DEVNULL)
    say("building the plug-in's own kernels (where there is a C++ compiler)")
    # Without them the plug-in computes with vLLM's, so there is nothing to fail; done here, no run waits for it.
    build = "from lookahead_bench.engine.native.build import can_build; can_build()"
    subprocess.run([PYTHON, "-c", build], stdin=subprocess.DEVNULL)
    STAMP.write_text(json.dumps(wanted))
    say(f"done in {time.monotonic() - started:.0f} s: {VENV}")


def digest(file: Path, *more: object) -> str:
    return hashlib.sha256(b"\0".join([file.read_bytes(), *(str(part).encode() for part in more)])).hexdigest()


def read_stamp() -> dict:
    """What the environment was made from; empty if it was never finished."""
    try:
        return json.loads(STAMP.read_text()) if PYTHON.exists() else {}
    except (OSError, ValueError):
        return {}


def make_environment() -> None:
    """A fresh .venv with everything in the lock."""
    free = shutil.disk_usage(ROOT).free
    if VENV.exists():
        say("removing an unfinished or outdated .venv")
        shutil.rmtree(VENV)
    elif free < FREE_BYTES:
        raise SetupError(f"{ROOT} has {free / 1e9:.1f} GB free, {FREE_BYTES / 1e9:.0f} GB are needed")
    say(f"making .venv with Python {sys.version.split()[0]}")
    base = getattr(sys, "_base_executable", sys.executable)  # this may run inside the old .venv
    made = subprocess.run([base, "-m", "venv", VENV], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if made.returncode:
        raise SetupError(f"{base} cannot make a virtual environment (is its venv module installed?)")
    requirements = [line.strip() for line in LOCK.read_text().splitlines()]
    torch = next(line for line in requirements if line.startswith("torch=="))
    say(f"installing {torch}")
    install = ("install", "--no-deps", "--no-compile")
    try:
        pip(*install, torch)
    except SetupError:
        say(f"where pip looks there is none, trying {TORCH_INDEX}")
        try:
            pip(*install, torch, "--index-url", TORCH_INDEX, "--retries=2")
        except SetupError:
            raise SetupError(f"{torch} is to be had neither where pip looks nor from {TORCH_INDEX} (see {LOG})")
    count = sum(bool(line) and not line.startswith("#") for line in requirements)
    say("installing the other packages of the lock")
    pip(*install, "--requirement", str(LOCK), count=count)


def pip(*arguments: str, count: int = 0) -> None:
    """Run the environment's pip, its output in LOG; show how far it is of ``count`` packages."""
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments, "--progress-bar=off"]
    seen = 0
    errors = []
    with LOG.open("a") as stream:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        ) as child:
            for line in child.stdout:
                stream.write(line)
                if re.match(r"Collecting |Processing |Requirement already|Ignoring ", line):
                    seen += 1
                    if count and seen % 50 == 0:
                        say(f"  {seen} of {count}")
                elif line.startswith("Installing collected") and count:
                    say("  writing files (about a minute)")
                elif line.startswith("ERROR:"):
                    errors.append(line[len("ERROR:"):].strip())
    if child.returncode:
        raise SetupError(f"{errors[-1] if errors else 'pip failed'} (see {LOG})")


def say(text: str) -> None:
    print(f"make setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
