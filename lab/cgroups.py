"""A cgroup of its own for every host, in every hierarchy of the machine: its limits, and what belongs to it.

Hosts that share one tree manage each other's units: both have /system.slice/ssh.service. Seen as random waits of 90 s
in restarts and reboots, with two hosts only.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aerie.errors import AerieError

__all__ = ["create", "hosts", "kill", "limit_memory", "memory", "pids", "remove"]

PARENT = "aerie-lab"
KILL_TIMEOUT_S = 10


def create(name: str) -> tuple[Path, ...]:
    """The host's cgroup folders, made where they are not there yet."""
    made = []
    for root, is_v2 in _hierarchies():
        parent = root / PARENT
        parent.mkdir(exist_ok=True)
        if is_v2:
            _delegate(root)
            _delegate(parent)
        (parent / name).mkdir(exist_ok=True)
        made.append(parent / name)
    return tuple(made)


def hosts() -> set[str]:
    """The hosts that have a cgroup, running or not."""
    return {path.name for root, _ in _hierarchies() for path in (root / PARENT).glob("lab[0-9][0-9]")}


def pids(name: str) -> set[int]:
    """Every process of the host, its systemd-nspawn and its supervisor, as numbered on this machine."""
    found: set[int] = set()
    for root, _ in _hierarchies():
        for folder, _, _ in os.walk(root / PARENT / name):  # passes over groups that go while it looks
            with suppress(OSError):
                found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return found - {0}


def limit_memory(name: str, limit_bytes: int) -> None:
    """Let the host have so much memory, page cache included, and no more; works on a running host too."""
    file = _memory_file(name, "memory.limit_in_bytes", "memory.max")
    if file is not None:
        file.write_text(str(limit_bytes))


def memory(name: str) -> int | None:
    """Bytes that the host uses now, page cache included; None where nothing counts them."""
    file = _memory_file(name, "memory.usage_in_bytes", "memory.current")
    try:
        return None if file is None else int(file.read_text())
    except OSError:
        return None


def kill(name: str) -> None:
    """Kill every process of the host, in at most 10 s. Raises AerieError when some stay."""
    end = time.monotonic() + KILL_TIMEOUT_S
    while left := pids(name):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise AerieError(
                name,
                seen=f"processes {sorted(left)[:10]} alive after {KILL_TIMEOUT_S} s of SIGKILL",
                expected="none",
                remedy="See what they wait for in /proc/PID/stack, then run invoke lab.down again.",
            )
        time.sleep(0.02)


def remove(name: str) -> None:
    """Remove the host's empty cgroups, and their parent with the last host."""
    for root, _ in _hierarchies():
        top = root / PARENT / name
        if top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                _rmdir(Path(folder))
        if (root / PARENT).is_dir() and not any(path.is_dir() for path in (root / PARENT).iterdir()):
            _rmdir(root / PARENT)


def _rmdir(folder: Path) -> None:
    # EBUSY for some milliseconds after the last process died: the kernel lets go of the group later.
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AerieError(str(folder), seen="busy for 2 s", expected="an empty cgroup", remedy="Run invoke lab.down again.")


def _hierarchies() -> Iterator[tuple[Path, bool]]:
    """Mount point of each cgroup hierarchy, and whether it is of version 2."""
    seen = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        point, kind, options = Path(before.split()[4]), after.split()[0], after.split()[2]
        # A version 1 cpuset takes no process before it is given cores; hosts may use them all, so they stay outside.
        if kind in ("cgroup", "cgroup2") and "cpuset" not in options.split(",") and point not in seen:
            seen.add(point)
            yield point, kind == "cgroup2"


def _delegate(folder: Path) -> None:
    """Let children of a version 2 group have its controllers."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _memory_file(name: str, v1: str, v2: str) -> Path | None:
    for root, is_v2 in _hierarchies():
        file = root / PARENT / name / (v2 if is_v2 else v1)
        if file.exists():
            return file
    return None
