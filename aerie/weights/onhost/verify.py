"""Hashes files side by side, each in a process of its own, as many at once as this host has processors."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerie.errors import AerieError
from aerie.weights.manifest import File
from aerie.weights.onhost import hash_file
from aerie.weights.onhost.children import Child
from aerie.weights.onhost.target import Stamp

__all__ = ["Hashed", "Verifier"]

_TRIES: Final = 3  # of a hashing process that is killed or cannot read


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """A file's content, read whole. stamp: None when the hash is another than the manifest's."""

    found: str
    stamp: Stamp | None


class Verifier:
    """The hashing processes of one staging or check. lock: the descriptor that they hold while they run."""

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self._processors = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def hash(self, file: File, path: Path) -> Hashed:
        """Read the file and put it on the disk. Raises AerieError when it cannot be read."""
        reason = ""
        async with self._processors:
            for _ in range(_TRIES):
                argv = (sys.executable, "-I", "-S", hash_file.__file__, file.hash_kind, str(file.size), str(path))
                child = await Child.start(argv, lock=self._lock)
                try:
                    ended = await child.wait()
                finally:
                    await child.kill()
                assert ended is not None, "a wait without a limit ends with the process"
                if ended.exit_code == 0:
                    return _hashed(file, ended.output)
                reason = (ended.output.splitlines() or [ended.words])[-1]
        raise AerieError(
            str(path), seen=f"{_TRIES} times: {reason}", expected="a file that can be read and hashed",
            remedy="Look at the kernel's log for errors of the disk, and for what kills processes.",
        )  # fmt: skip


def _hashed(file: File, answer: str) -> Hashed:
    found, *numbers = answer.split()
    size, mtime_ns, inode = map(int, numbers)
    if found != file.hash or size != file.size:
        return Hashed(found=found, stamp=None)
    stamp = Stamp(hash_kind=file.hash_kind, hash=found, size=size, mtime_ns=mtime_ns, inode=inode)
    return Hashed(found=found, stamp=stamp)
