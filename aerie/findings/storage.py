"""What differs in a host's storage for weights."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from aerie.snapshot import Filesystem

from .case import Case
from .model import Finding

__all__ = ["judge"]

GB = 10**9


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer storage."""
    lock = case.lock.storage
    below = _below(case)
    if below is None:
        return
    if lock.device and below.path != lock.path:
        yield case.finding(
            "storage.path-missing", seen=f"{lock.path} lies on {below.path}", expected=f"{lock.device} mounted there"
        )
        return
    if below.free_bytes < lock.min_free_gb * GB:
        yield case.finding(
            "storage.free-low",
            seen=f"{below.free_bytes / GB:.0f} GB free on {below.path}",
            expected=f"{lock.min_free_gb} GB",
            path=below.path,
        )
    if below.readahead_kib is not None and below.readahead_kib < lock.readahead_kib:
        yield case.finding(
            "storage.readahead-low",
            seen=f"{below.readahead_kib} KiB on {below.disk}",
            expected=f"{lock.readahead_kib} KiB",
        )
    if below.scheduler is not None and below.scheduler != lock.scheduler:
        yield case.finding(
            "storage.scheduler-wrong", seen=f"{below.scheduler} on {below.disk}", expected=lock.scheduler
        )


def _below(case: Case) -> Filesystem | None:
    """The file system that the lock's path lies on."""
    path = PurePosixPath(case.lock.storage.path)
    mounts = case.snapshot.storage.filesystems
    return next((mounts[str(one)] for one in (path, *path.parents) if str(one) in mounts), None)
