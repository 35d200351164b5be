"""Memory that running services may still take while a build goes on: what they hold already is not available anyway.

Counted are the engines of ours and everything that has a process on a GPU, each with

    max(workers × 4 GiB − held, held / 8), and never more than its control group lets it take

held: private memory (RssAnon) of all its processes. A worker is a process on a GPU: one that starts comes to 4 GiB of
the host's memory beside weights (2.6 GiB resident were measured of a vLLM without GPU, 2026-11-30, and spikes); one
that serves grows with its requests, an eighth of what it holds: an estimate, nobody measured it. Weights are read
through the page cache, which is available memory. Standard library only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cgroups import Group, groups, lines

__all__ = ["WORKER_BYTES", "Service", "read", "reserve"]

WORKER_BYTES = 4 << 30
GROWTH_SHARE = 8
UNLIMITED_BYTES = 2**60  # version 1 writes the largest number of pages where there is no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What runs, and may grow. name: its unit, or "process 4711"; workers: its processes on GPUs, or those to come.

    held_bytes: private memory of its processes; room_bytes: what its control group lets it take, None for no limit.
    """

    name: str
    workers: int
    held_bytes: int
    room_bytes: int | None

    @property
    def growth_bytes(self) -> int:
        """What is reserved for it, at least 0."""
        grown = max(self.workers * WORKER_BYTES - self.held_bytes, self.held_bytes // GROWTH_SHARE)
        return grown if self.room_bytes is None else min(grown, self.room_bytes)


def reserve(services: Sequence[Service]) -> tuple[int, tuple[str, ...]]:
    """The bytes to reserve for all of them, and a sentence for each."""
    said = tuple(
        f"{_gib(one.growth_bytes)} reserved for {one.name}: it holds {_gib(one.held_bytes)}"
        + (f" and may take {_gib(one.room_bytes)} more" if one.room_bytes is not None else "")
        + f", {one.workers} worker{'s' * (one.workers != 1)}"
        for one in services
    )
    return sum(one.growth_bytes for one in services), said


def read(asked: Sequence[Mapping[str, Any]], root: Path = Path("/")) -> Iterator[Service]:
    """What runs of it. asked: {"unit": a systemd unit or null, "pids": on GPUs, "workers"}; root: "/" on a host.

    One whose processes are all gone is left out.
    """
    units = _pids_by_unit({str(one["unit"]) for one in asked if one["unit"]}, root)
    for one in asked:
        pids = {*one["pids"], *units.get(one["unit"], ())}
        held = {pid: size for pid in pids if (size := _private(root, pid)) is not None}
        if held:
            yield Service(
                name=one["unit"] or f"process {min(held)}",
                workers=one["workers"],
                held_bytes=sum(held.values()),
                room_bytes=_room(root, min(held), one["unit"]),
            )


def _pids_by_unit(units: set[str], root: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for folder in (root / "proc").iterdir() if units else ():
        if folder.name.isdigit():
            for unit in units & {part for line in _told(root, folder.name, "cgroup") for part in line.split("/")}:
                found.setdefault(unit, set()).add(int(folder.name))
    return found


def _private(root: Path, pid: int) -> int | None:
    """None for a process that is gone, or a kernel's thread."""
    for line in _told(root, str(pid), "status"):
        if row := re.match(r"RssAnon:\s+(\d+) kB", line):
            return int(row[1]) * 1024
    return None


def _told(root: Path, pid: str, file: str) -> list[str]:
    try:
        return lines(root, f"proc/{pid}/{file}")
    except OSError:  # ProcessLookupError: gone between opening and reading
        return []


def _room(root: Path, pid: int, unit: str | None) -> int | None:
    """What the unit's own group may still take, its cached files counted as free."""
    group = next((one for one in groups(root, "memory", pid=pid) if unit and one.folder.name == unit), None)
    return None if group is None else _left(group)


def _left(group: Group) -> int | None:
    limit = group.read("memory.max" if group.is_unified else "memory.limit_in_bytes") or "max"
    used = group.read(group.usage)
    if limit == "max" or int(limit) >= UNLIMITED_BYTES or used is None:
        return None
    return max(0, int(limit) - max(0, int(used) - group.files_bytes))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
