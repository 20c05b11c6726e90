"""Writing files so that no reader ever sees a part of one."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, content: bytes | memoryview) -> None:
    """Put ``content`` at ``path``, on disk when this returns: a reader sees the old file or the new one.

    Raises:
        OSError: it can't be written; the old file stands.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except OSError as failure:
        temporary.unlink(missing_ok=True)
        raise OSError(failure.errno, failure.strerror, str(path)) from failure


class AppendOnly:
    """A file that grows by whole records: after a failed append it is as it was before.

    Args:
        path: made if it isn't there.
        size: length to cut it to first: what a crash left behind the last whole record goes.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._handle, size)

    def append(self, record: bytes) -> None:
        """Add ``record``; on disk when this returns.

        Raises:
            OSError: it can't be written.
        """
        size = os.fstat(self._handle).st_size
        try:
            _write(self._handle, record)
            os.fsync(self._handle)
        except OSError as failure:
            os.ftruncate(self._handle, size)
            raise OSError(failure.errno, failure.strerror, str(self._path)) from failure

    def clear(self) -> None:
        """Empty the file."""
        os.ftruncate(self._handle, 0)

    def close(self) -> None:
        os.close(self._handle)


def _write(handle: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]
