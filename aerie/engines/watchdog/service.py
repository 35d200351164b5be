"""The service as systemd has it: its state, its processes, and the steps that change it."""

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Service", "State", "Unit", "send"]

CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"))
ASK_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """unit: ActiveState. start: differs from one start to the next. pids: every process of it."""

    unit: str
    start: str
    pids: tuple[int, ...]


class Service(Protocol):
    """What the watchdog needs of a service."""

    def state(self) -> State: ...
    def start(self) -> None: ...
    def restart(self) -> None: ...
    def kill(self) -> None: ...
    def log(self, lines: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of the system's systemd. file: of its log, empty for the journal."""

    name: str
    file: str = ""

    def state(self) -> State:
        """Now. A unit that systemd does not know is inactive."""
        told = dict(
            line.split("=", 1)
            for line in _run("systemctl", "show", self.name, "--property=ActiveState,ControlGroup,InvocationID")
            if "=" in line
        )
        return State(
            unit=told.get("ActiveState", "unknown"),
            start=told.get("InvocationID", ""),
            pids=tuple(_members(told.get("ControlGroup", ""))),
        )

    def start(self) -> None:
        """Start it, also one that failed too often. Does not wait for it."""
        _run("systemctl", "reset-failed", self.name)
        _run("systemctl", "start", "--no-block", self.name)

    def restart(self) -> None:
        """Stop as the unit says and start; one that somebody stopped meanwhile stays so. Does not wait for it."""
        _run("systemctl", "try-restart", "--no-block", self.name)

    def kill(self) -> None:
        """SIGKILL to every process of it, then start it."""
        _run("systemctl", "kill", "--kill-whom=all", "--signal=SIGKILL", self.name)
        self.start()

    def log(self, lines: int) -> list[str]:
        """Its last lines."""
        if self.file:
            return _tail(Path(self.file), lines)
        return _run("journalctl", "--unit", self.name, "--output=cat", "--no-pager", f"--lines={lines}")


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _members(group: str) -> list[int]:
    for root in CGROUPS:
        folder = root / group.lstrip("/")
        if group not in ("", "/") and (folder / "cgroup.procs").exists():
            files = folder.rglob("cgroup.procs")
            return sorted({int(pid) for file in files for pid in _read(file).split()})
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _tail(path: Path, lines: int, size: int = 1 << 20) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def _run(*argv: str) -> list[str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
