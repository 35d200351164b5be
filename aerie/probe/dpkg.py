"""The packages that dpkg knows, from its own files, and who holds its lock."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Any

from .reading import join, names, optional, text

__all__ = ["broken", "installed", "lock_holder", "rows"]

LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock")
WANTS = {"unknown": "u", "install": "i", "hold": "h", "deinstall": "r", "purge": "p"}
STATES = {
    "not-installed": "n", "config-files": "c", "half-installed": "H", "unpacked": "U",
    "half-configured": "F", "triggers-awaited": "W", "triggers-pending": "t", "installed": "i",
}  # fmt: skip


def rows(root: str = "/") -> dict[str, dict[str, Any]]:
    """Every package of dpkg's database by name, as the snapshot's Package; of a foreign architecture as name:arch."""
    folder = join(root, "/var/lib/dpkg")
    native = (optional(os.path.join(folder, "arch-native")) or "").strip()
    found: dict[str, dict[str, Any]] = {}
    documents = [text(os.path.join(folder, "status"))]
    # Changes that dpkg has not written into `status` yet: it was stopped, or works right now.
    updates = os.path.join(folder, "updates")
    documents += [text(os.path.join(updates, name)) for name in names(updates) if name.isdigit()]
    for document in documents:
        for fields in _paragraphs(document):
            name, architecture = fields["Package"], fields.get("Architecture", "")
            native = native or (architecture if name == "dpkg" else "")
            if name in found and found[name]["architecture"] != architecture:
                name = f"{name}:{architecture}"
            found[name] = {**_package(fields), "architecture": architecture}
    for package in found.values():
        del package["architecture"]
    return found


def installed(packages: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of which more than configuration files is there."""
    return {name: package for name, package in sorted(packages.items()) if package["status"][1] not in "nc"}


def broken(packages: dict[str, dict[str, Any]]) -> list[str]:
    """Those neither cleanly installed nor cleanly removed."""
    return sorted(
        name for name, package in packages.items() if package["status"][1] not in "nci" or package["status"][2:]
    )


def lock_holder(root: str = "/") -> str | None:
    """The process that holds one of dpkg's or apt's locks, "apt-get (pid 4711)"; None while nobody does."""
    for lock in LOCKS:
        try:
            pid = _holder(join(root, lock))
        except FileNotFoundError:
            continue
        if pid:
            return f"{optional(f'/proc/{pid}/comm') or 'a process'} (pid {pid})"
    return None


def _holder(path: str) -> int:
    # struct flock of Linux on 64 bits: type, whence, start, length, pid. F_GETLK only asks.
    question = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with open(path, "rb") as file:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, question))
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def _paragraphs(document: str) -> Iterator[dict[str, str]]:
    for block in document.split("\n\n"):
        fields = {}
        for line in block.split("\n"):
            if line[:8] in ("Package:", "Status: ", "Version:", "Maintain", "Architec"):
                key, _, value = line.partition(":")
                fields[key] = value.strip()
        if "Package" in fields:
            yield fields


def _package(fields: dict[str, str]) -> dict[str, Any]:
    want, error, state = [*fields.get("Status", "").split(), "unknown", "ok", "not-installed"][:3]
    return {
        "version": fields.get("Version", ""),
        # A held package is as well as an installed one; that it is held has a field of its own.
        "status": WANTS.get(want, "u").replace("h", "i") + STATES.get(state, "?") + ("" if error == "ok" else "R"),
        "maintainer": fields.get("Maintainer", ""),
        "is_held": want == "hold",
    }
