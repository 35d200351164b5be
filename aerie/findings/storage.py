"""What differs in a host's storage for weights."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from aerie.snapshot import Filesystem, Unknown

from .case import Case, known
from .model import Finding

__all__ = ["below", "judge"]

GB = 10**9


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer storage."""
    lock = case.lock.storage
    if has_path(case) is False:
        yield case.finding("storage.path-missing", seen=f"no folder {lock.path}", expected=f"a folder {lock.path}")
        return
    there = known(below(case))
    if there is None:
        return
    if lock.device and there.path != lock.path:
        yield case.finding(
            "storage.path-missing", seen=f"{lock.path} lies on {there.path}", expected=f"{lock.device} mounted there"
        )
        return
    if there.free_bytes < lock.min_free_gb * GB:
        yield case.finding(
            "storage.free-low",
            seen=f"{there.free_bytes / GB:.0f} GB free on {there.path}",
            expected=f"{lock.min_free_gb} GB",
            path=there.path,
        )
    if there.readahead_kib is not None and there.readahead_kib < lock.readahead_kib:
        yield case.finding(
            "storage.readahead-low",
            seen=f"{there.readahead_kib} KiB on {there.disk}",
            expected=f"{lock.readahead_kib} KiB",
        )
    if there.scheduler is not None and there.scheduler != lock.scheduler:
        yield case.finding(
            "storage.scheduler-wrong", seen=f"{there.scheduler} on {there.disk}", expected=lock.scheduler
        )


def has_path(case: Case) -> bool | Unknown:
    """Is there a folder at the lock's path?"""
    storage = case.snapshot.storage
    path = PurePosixPath(case.lock.storage.path)
    for folder in (*reversed(path.parents[:-1]), path):
        if str(folder) in storage.filesystems:
            continue
        names = storage.folders.get(str(folder.parent), Unknown(unknown=f"{folder.parent} is not looked into"))
        if isinstance(names, Unknown):
            return names
        if folder.name not in names:
            return False
    return True


def below(case: Case) -> Filesystem | Unknown | None:
    """The file system that the lock's path lies on; None where none is known."""
    path = PurePosixPath(case.lock.storage.path)
    mounts = case.snapshot.storage.filesystems
    return next((mounts[str(one)] for one in (path, *path.parents) if str(one) in mounts), None)
