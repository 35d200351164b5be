"""Processes: their names, and the systemd unit they run in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from .reading import join, names, optional, text

__all__ = ["listening", "name_of", "pids_by_unit", "sockets", "unit_in", "unit_of"]

LISTEN = "0A"


def name_of(pid: int, root: str = "/") -> str:
    """The name of a process, "" when it ended meanwhile."""
    return optional(join(root, f"/proc/{pid}/comm")) or ""


def unit_of(pid: int, root: str = "/") -> str | None:
    """The systemd unit of a process; None outside of one, in a login session, and when it ended meanwhile."""
    try:
        return unit_in(text(join(root, f"/proc/{pid}/cgroup")))
    except OSError:
        return None


def unit_in(cgroup: str) -> str | None:
    """The innermost service or scope in /proc/PID/cgroup; a login's session is none."""
    # Version 2's line comes as "0::/system.slice/x.service", version 1's systemd one as "1:name=systemd:/…".
    lines = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    paths = [path for number, controllers, path in lines if controllers == "name=systemd" or number == "0"]
    for path in sorted(paths, key=len, reverse=True):
        for part in reversed(path.split("/")):
            if part.endswith((".service", ".scope")):
                is_session = re.fullmatch(r"(session-\w+|init)\.scope|user@\d+\.service", part)
                return None if is_session else part
    return None


def pids_by_unit(prefix: str, root: str = "/") -> dict[int, str]:
    """The processes of units whose name begins with `prefix`."""
    found = {}
    for name in names(join(root, "/proc")):
        if name.isdigit():
            unit = unit_of(int(name), root)
            if unit and unit.startswith(prefix):
                found[int(name)] = unit
    return found


def listening(pids: Iterable[int], root: str = "/") -> list[str]:
    """The addresses, "address:port", on which these processes listen."""
    table: dict[str, str] = {}
    for file in ("tcp", "tcp6"):
        table.update(sockets(optional(join(root, f"/proc/net/{file}")) or ""))
    held = {inode for pid in pids for inode in _sockets_of(pid, root)}
    return sorted({address for inode, address in table.items() if inode in held})


def sockets(table: str) -> dict[str, str]:
    """The address, "127.0.0.1:8000", by socket inode, of the listening ones in /proc/net/tcp or tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTEN:
            found[fields[9]] = _address(fields[1])
    return found


def _address(word: str) -> str:
    import socket  # where no engine runs, nobody needs it

    host, _, port = word.partition(":")
    # Words of 32 bits, each in the machine's byte order.
    raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    shown = socket.inet_ntop(family, raw)
    return f"[{shown}]:{int(port, 16)}" if family == socket.AF_INET6 else f"{shown}:{int(port, 16)}"


def _sockets_of(pid: int, root: str = "/") -> set[str]:
    """Inodes of the sockets that a process holds."""
    folder = join(root, f"/proc/{pid}/fd")
    found = set()
    for name in names(folder):
        try:
            target = os.readlink(os.path.join(folder, name))
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
