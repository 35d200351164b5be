"""What this host gives to a build that starts now, read from /proc and /sys/fs/cgroup: the edge of sizing.

Limits of both versions of control groups count, at every level from this process's group up to the mount: a host can
have them side by side, and a container sees only the lower part of the tree.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from aerie.errors import AerieError

from .sizing import Capacity, Limit

__all__ = ["read"]

UNLIMITED_BYTES = 2**60  # version 1 writes the largest number of pages where there is no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A control group: is_unified for version 2; folder: below /sys/fs/cgroup; root: where "/" is."""

    is_unified: bool
    folder: Path
    root: Path

    def read(self, name: str) -> str | None:
        """What the file holds; None where this group has none of that name, or may not be looked at."""
        try:
            return (self.folder / name).read_text().strip()
        except OSError:  # a controller that is not on, a root group, or a group that has just gone
            return None

    def where(self, name: str) -> str:
        """The file, as messages name it."""
        return f"/{(self.folder / name).relative_to(self.root)}"

    def statistics(self) -> dict[str, int]:
        """memory.stat; nothing where there is none."""
        pairs = (line.split() for line in (self.read("memory.stat") or "").splitlines())
        return {key: int(value) for key, value in pairs}


def read(root: Path = Path("/")) -> Capacity:
    """Processors by affinity and quota, available memory and the limits of control groups. root: "/" on a host.

    Raises AerieError where /proc does not say what Linux says there.
    """
    processors = _affinity(root)
    source = "affinity"
    for quota, where in _each(_groups(root, "cpu"), _quota):
        if quota < processors:
            processors, source = quota, where
    return Capacity(
        processors=processors,
        processors_source=source,
        available_bytes=_available(root),
        limits=tuple(limit for group in _groups(root, "memory") for limit in _limits(group)),
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
    for line in _lines(root, file):
        if line.startswith(key) and line[len(key) :].strip():
            return line[len(key) :].strip()
    raise AerieError(
        f"/{file}",
        seen=f"no {key.rstrip(':')}",
        expected="what Linux says there since 3.14",
        remedy="Build on a Linux host whose /proc is mounted.",
    )


def _lines(root: Path, file: str) -> list[str]:
    try:
        return (root / file).read_text().splitlines()
    except FileNotFoundError:
        return []


def _groups(root: Path, controller: str) -> Iterator[_Group]:
    """Every group that limits this process by this controller, the innermost first, of both versions."""
    own = _own(root)
    for is_unified, controllers, mounted_root, mount in _mounts(root):
        if not is_unified and controller not in controllers:
            continue
        path = own.get("" if is_unified else controller)
        if path is None:
            continue
        top = root / mount.lstrip("/")
        # In a container that has the host's name for itself, the mount shows that group and what is below it only.
        # A path that leads out of the mount belongs to a group that cannot be seen: the top is what can.
        inside = PurePosixPath(path)
        below = inside.relative_to(mounted_root) if inside.is_relative_to(mounted_root) else PurePosixPath()
        parts = () if ".." in below.parts else below.parts
        for depth in range(len(parts), -1, -1):
            yield _Group(is_unified=is_unified, folder=top.joinpath(*parts[:depth]), root=root)


def _own(root: Path) -> dict[str, str]:
    """The group of this process by controller, "" for version 2's."""
    own: dict[str, str] = {}
    for line in _lines(root, "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    return own


def _mounts(root: Path) -> Iterator[tuple[bool, list[str], str, str]]:
    """(is version 2, controllers, the group that is mounted, where) of every mount of control groups."""
    for line in _lines(root, "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            mounted_root, mount = before.split()[3:5]
            yield kind == "cgroup2", options.split(","), mounted_root, mount


def _each(groups: Iterator[_Group], judge: Callable[[_Group], tuple[int, str] | None]) -> Iterator[tuple[int, str]]:
    return (found for group in groups if (found := judge(group)) is not None)


def _quota(group: _Group) -> tuple[int, str] | None:
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


def _limits(group: _Group) -> Iterator[Limit]:
    """A group's limits of memory. Cached files count as free, as in MemAvailable: the group drops them when it must."""
    cached = group.statistics()
    names: tuple[str, ...]
    if group.is_unified:
        # Above memory.high a group is slowed down until it stands still, so that is a limit too.
        names, usage, prefix = ("memory.max", "memory.high"), "memory.current", ""
    else:
        names, usage, prefix = ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"
    files = sum(cached.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    for name in names:
        limit = group.read(name)
        if limit is None or limit == "max" or int(limit) >= UNLIMITED_BYTES:
            continue
        if (used := group.read(usage)) is None:  # not 0: that would promise memory which is taken
            raise AerieError(
                group.where(usage),
                seen="not readable",
                expected=f"the use of what {group.where(name)} limits",
                remedy="Build as a user who may read it.",
            )
        yield Limit(where=group.where(name), limit_bytes=int(limit), used_bytes=max(0, int(used) - files))
