"""Writing and reading much without pushing out what should stay in memory: the weights that are served next.

828 GB of hidden states that go through the page cache leave nothing of 547 GB of weights in it. What was written or
read here, and is not wanted soon, is put on the disk and let go of, so that it never holds more than a small share.
"""

import os
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from aerie.errors import AerieError
from aerie.weights.onhost.residency import resident_bytes

__all__ = ["BATCH_BYTES", "PassBy", "copy_tree", "is_cold", "release"]

BATCH_BYTES = 256 << 20  # kept back before it is let go of; a flush for each small file would be slow
_CHUNK = 64 << 20


class PassBy:
    """Files that pass by: `done(path)` says that one was written or read and is not wanted in memory any more.

        with PassBy() as passing:
            write(path)
            passing.done(path)

    At most `batch_bytes` of them stay in the page cache, and nothing when it is left. They are on the disk then too.
    Any thread may call it.
    """

    def __init__(self, batch_bytes: int = BATCH_BYTES) -> None:
        self.batch_bytes = batch_bytes
        self._waiting: list[Path] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()

    def done(self, path: Path) -> None:
        """Let go of the file, with the next batch. It may be renamed or removed only after that."""
        size = path.stat().st_size
        with self._lock:
            self._waiting.append(path)
            self._bytes += size
            is_full = self._bytes >= self.batch_bytes
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Let go of what waits."""
        with self._lock:
            waiting, self._waiting, self._bytes = self._waiting, [], 0
        for path in waiting:
            if path.exists():
                release(path)


def release(path: Path) -> None:
    """Put the file on the disk and take its pages out of the page cache; its content stays as it is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _release(descriptor)
    finally:
        os.close(descriptor)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder as shutil.copytree does, by pieces that do not stay in the page cache."""
    shutil.copytree(source, target, copy_function=_copy)


def is_cold(path: Path) -> bool:
    """Whether less than half of the file is in the page cache: who reads it now should let go of it afterwards."""
    try:
        return resident_bytes(path) * 2 < path.stat().st_size
    except AerieError:  # another user's file, whose pages are not ours to count
        return False


def _copy(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        while piece := reader.read(_CHUNK):
            view = memoryview(piece)
            while view:
                view = view[writer.write(view) :]
            for file in (reader, writer):
                _release(file.fileno())
    shutil.copystat(source, target)


def _release(descriptor: int) -> None:
    os.fdatasync(descriptor)  # pages that are not on the disk yet cannot be let go of
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
