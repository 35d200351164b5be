"""What this host gives to a build that starts now, read from /proc and /sys/fs/cgroup: the edge of sizing.

Limits of both versions of control groups count, at every level from this process's group up to the mount: a host can
have them side by side, and a container sees only the lower part of the tree.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from aerie.errors import AerieError

from .cgroups import Group, groups, lines
from .sizing import Capacity, Limit

__all__ = ["read"]

UNLIMITED_BYTES = 2**60  # version 1 writes the largest number of pages where there is no limit


def read(root: Path = Path("/")) -> Capacity:
    """Processors by affinity and quota, available memory and the limits of control groups. root: "/" on a host.

    Raises AerieError where /proc does not say what Linux says there.
    """
    processors = _affinity(root)
    source = "affinity"
    for quota, where in _each(groups(root, "cpu"), _quota):
        if quota < processors:
            processors, source = quota, where
    return Capacity(
        processors=processors,
        processors_source=source,
        available_bytes=_available(root),
        limits=tuple(limit for group in groups(root, "memory") for limit in _limits(group)),
    )


def _affinity(root: Path) -> int:
    """The processors that this process may run on, 1 or more; a cpuset of its group is part of that."""
    text = _value(root, "proc/self/status", "Cpus_allowed_list:")
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _available(root: Path) -> int:
    """MemAvailable, in bytes: what can be taken without swapping, cached files counted as free."""
    return int(_value(root, "proc/meminfo", "MemAvailable:").split()[0]) * 1024


def _value(root: Path, file: str, key: str) -> str:
    for line in lines(root, file):
        if line.startswith(key) and line[len(key) :].strip():
            return line[len(key) :].strip()
    raise AerieError(
        f"/{file}",
        seen=f"no {key.rstrip(':')}",
        expected="what Linux says there since 3.14",
        remedy="Build on a Linux host whose /proc is mounted.",
    )


def _each(groups: Iterator[Group], judge: Callable[[Group], tuple[int, str] | None]) -> Iterator[tuple[int, str]]:
    return (found for group in groups if (found := judge(group)) is not None)


def _quota(group: Group) -> tuple[int, str] | None:
    """The processors that a group's quota of time is worth, rounded up so that none of it is left, and the file."""
    if group.is_unified:
        name = "cpu.max"
        quota, _, period = (group.read(name) or "max 100000").partition(" ")
    else:
        name = "cpu.cfs_quota_us"
        quota, period = group.read(name) or "-1", group.read("cpu.cfs_period_us") or "100000"
    if quota in ("max", "-1"):
        return None
    return max(1, -(-int(quota) // int(period))), group.where(name)


def _limits(group: Group) -> Iterator[Limit]:
    """A group's limits of memory. Cached files count as free, as in MemAvailable: the group drops them when it must."""
    # Above memory.high a group is slowed down until it stands still, so that is a limit too.
    for name in ("memory.max", "memory.high") if group.is_unified else ("memory.limit_in_bytes",):
        limit = group.read(name)
        if limit is None or limit == "max" or int(limit) >= UNLIMITED_BYTES:
            continue
        if (used := group.read(group.usage)) is None:  # not 0: that would promise memory which is taken
            raise AerieError(
                group.where(group.usage),
                seen="not readable",
                expected=f"the use of what {group.where(name)} limits",
                remedy="Build as a user who may read it.",
            )
        used_bytes = max(0, int(used) - group.files_bytes)
        yield Limit(where=group.where(name), limit_bytes=int(limit), used_bytes=used_bytes)
