"""Hashing what a source has, several files at a time: hashlib lets other threads run meanwhile."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from typing import BinaryIO

from aerie.errors import AerieError
from aerie.weights.manifest import File

__all__ = ["Say", "hashed", "with_hashes"]

Say = Callable[[str], None]
BUFFER = 256 << 10  # 64 to 256 KiB stay in the processor's cache (facts: 64 KiB hashed fastest)
AT_ONCE = 4


def hashed(path: str, size: int, opened: AbstractContextManager[BinaryIO]) -> File:
    """The file by reading all of its content. Raises AerieError where it has another size than was said."""
    content, count = hashlib.sha256(), 0
    with opened as stream:
        while piece := stream.read(BUFFER):
            content.update(piece)
            count += len(piece)
    if count != size:
        remedy = "It changed meanwhile, or the connection ended early: try again."
        raise AerieError(path, seen=f"{count} bytes", expected=f"{size}, as was said before", remedy=remedy)
    return File(path=path, size=size, sha256=content.hexdigest())


def with_hashes(
    sizes: Mapping[str, int],
    known: Mapping[str, str],
    opened: Callable[[str], AbstractContextManager[BinaryIO]],
    say: Say,
) -> tuple[File, ...]:
    """Every file of `sizes`, with its known sha256 or the one of its content, which `opened(path)` gives."""
    files = [File(path=path, size=size, sha256=known[path]) for path, size in sizes.items() if path in known]
    unknown = [path for path in sizes if path not in known]
    if not unknown:
        return tuple(files)
    total = sum(sizes[path] for path in unknown)
    say(f"{len(unknown)} files without a known sha256 are read whole, {_size(total)}")
    return (*files, *_read(unknown, sizes, opened, say))


def _read(
    paths: Iterable[str],
    sizes: Mapping[str, int],
    opened: Callable[[str], AbstractContextManager[BinaryIO]],
    say: Say,
) -> list[File]:
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        jobs = [pool.submit(lambda path: hashed(path, sizes[path], opened(path)), path) for path in paths]
        files: list[File] = []
        try:
            for job in as_completed(jobs):
                files.append(job.result())
                say(f"{len(files)} of {len(jobs)}: {files[-1].path}, {_size(files[-1].size)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
