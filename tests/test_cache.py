"""Folders are published whole, once, whoever asks and whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead_bench.cache import cache_dir, find_folder, make_folder
from lookahead_bench.errors import InputError

pytestmark = pytest.mark.unit

PROGRAM = """
import pathlib, resource, sys, time
from lookahead_bench.cache import make_folder
from lookahead_bench.errors import InputError

seconds, size, limit = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

def fill(folder):
    (folder / "first").write_text("begun")
    print("filling", flush=True)
    time.sleep(seconds)
    (folder / "second").write_bytes(bytes(size))

try:
    print(make_folder("things", "one", fill))
except InputError as error:
    sys.exit(str(error))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LOOKAHEAD_BENCH_CACHE", str(tmp_path))
    return tmp_path


def start(seconds: float = 0, size: int = 10, limit: int = 0) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(seconds), str(size), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def visible(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if not item.name.startswith("."))


def test_two_processes_that_start_together_fill_once(cache):
    both = [start(seconds=1), start(seconds=1)]
    outputs = [child.communicate()[0].splitlines() for child in both]
    assert [child.returncode for child in both] == [0, 0]
    assert sum(lines.count("filling") for lines in outputs) == 1
    assert {lines[-1] for lines in outputs} == {str(cache / "things" / "one")}
    assert visible(cache / "things" / "one") == ["first", "manifest.json", "second"]


def test_what_a_killed_process_left_is_never_used(cache):
    child = start(seconds=600)
    assert child.stdout.readline() == "filling\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert find_folder("things", "one") is None
    folder = make_folder("things", "one", lambda target: (target / "file").write_text("whole"))
    assert (folder / "file").read_text() == "whole"
    assert [item.name for item in (cache / "things").iterdir() if item.is_dir()] == ["one"]


def test_a_full_disk_is_one_line_and_leaves_nothing(cache):
    child = start(size=1 << 20, limit=1 << 16)
    _, said = child.communicate()
    assert child.returncode == 1
    assert said.count("\n") == 1 and said.startswith(f"cannot write the cache {cache / 'things'}")
    assert [item for item in (cache / "things").iterdir() if item.is_dir()] == []


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOOKAHEAD_BENCH_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="cannot write the cache"):
        make_folder("things", "one", lambda target: None)


def test_a_truncated_file_is_made_again():
    folder = make_folder("things", "one", lambda target: (target / "file").write_text("whole"))
    assert find_folder("things", "one") == folder
    (folder / "file").write_text("")
    assert find_folder("things", "one") is None
    make_folder("things", "one", lambda target: (target / "file").write_text("whole"))
    assert (folder / "file").read_text() == "whole"


def test_everybody_may_read_it():
    folder = make_folder("things", "one", lambda target: (target / "file").touch(0o600))
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "file").stat().st_mode & 0o777 == 0o644


def test_the_cache_is_in_the_home_folder_unless_said_otherwise(monkeypatch):
    monkeypatch.delenv("LOOKAHEAD_BENCH_CACHE")
    assert cache_dir() == Path.home() / ".cache" / "lookahead-bench"
