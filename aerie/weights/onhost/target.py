"""A model's folder on a host: its names, its lock, and the stamps of the files that were verified.

<target>/<path>               a file of the model, whole and verified once
<target>/.aerie/manifest.json, verified.json (stamps), receipt.json, lock, parts/<path>.part
<target>/.aerie/parts.json    while hosts are staged together: how much of each part is there, for the others
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.runbook.step import write_atomic
from aerie.weights.manifest import File

__all__ = ["Stamp", "Target", "hold", "read_stamps", "write_parts", "write_stamps"]

_PARTS: Final = "aerie.parts/1"
_STAMPS: Final = "aerie.verified/1"
_ORPHANS_S: Final = 5.0  # children of a killed staging die with it (see children.py), but not in the same instant


@dataclass(frozen=True, slots=True)
class Target:
    """The folder of one model and manifest; no file is touched here."""

    path: Path

    @property
    def own(self) -> Path:
        """What aerie keeps of its own beside the files."""
        return self.path / ".aerie"

    @property
    def parts(self) -> Path:
        """Files in the making."""
        return self.own / "parts"

    def file(self, path: str) -> Path:
        """Where a file of the model is when it is whole and verified."""
        return self.path / path

    def part(self, path: str) -> Path:
        """Where it is until then."""
        return self.parts / f"{path}.part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """This file had this hash when it had this size, time of last change and inode."""

    hash_kind: str
    hash: str
    size: int
    mtime_ns: int
    inode: int

    def holds(self, file: File, seen: os.stat_result) -> bool:
        """The file is the one that was verified, and nobody wrote to it since. Equality: a clock may have jumped."""
        same = (self.size, self.mtime_ns, self.inode) == (seen.st_size, seen.st_mtime_ns, seen.st_ino)
        return same and (self.hash_kind, self.hash, self.size) == (file.hash_kind, file.hash, file.size)


def read_stamps(target: Target, manifest_sha256: str) -> dict[str, Stamp]:
    """The stamps by path; none where they are of another manifest or cannot be read: then files are hashed again."""
    try:
        document = json.loads((target.own / "verified.json").read_bytes())
        if document["schema"] != _STAMPS or document["manifest_sha256"] != manifest_sha256:
            return {}
        return {path: _stamp(row) for path, row in document["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return {}


def write_stamps(target: Target, manifest_sha256: str, stamps: Mapping[str, Stamp]) -> None:
    """Record what is verified, all of it or nothing."""
    rows = {
        path: {one.hash_kind: one.hash, "size": one.size, "mtime_ns": one.mtime_ns, "inode": one.inode}
        for path, one in sorted(stamps.items())
    }
    document = {"schema": _STAMPS, "manifest_sha256": manifest_sha256, "files": rows}
    write_atomic(target.own / "verified.json", json.dumps(document).encode())


def write_parts(target: Target, manifest_sha256: str, parts: Mapping[str, int] | None) -> None:
    """Tell the other hosts how many bytes of each unverified file are here; None: tell them nothing any more."""
    path = target.own / "parts.json"
    if parts is None:
        path.unlink(missing_ok=True)
        return
    document = {"schema": _PARTS, "manifest_sha256": manifest_sha256, "parts": dict(parts)}
    write_atomic(path, json.dumps(document).encode(), durable=False)


def hold(target: Target) -> int:
    """Lock the target for this staging: the descriptor, to be inherited by every child that writes there.

    The lock lasts until the last process that holds the descriptor has ended. Raises AerieError that names the holder.
    """
    descriptor = os.open(target.own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + _ORPHANS_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = _holder(descriptor)
            if _is_alive(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise AerieError(
                    str(target.path), seen=holder, expected="no other staging of this model on this host",
                    remedy="Wait for it to end, or attach to it with the same ./invoke stage.",
                ) from None  # fmt: skip
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} since {_now()}\n".encode(), 0)
    return descriptor


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"


def _is_alive(holder: str) -> bool:
    with suppress(IndexError, ValueError):
        return Path("/proc", str(int(holder.split()[1]))).exists()
    return True


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _stamp(row: Mapping[str, Any]) -> Stamp:
    kind = next(kind for kind in ("sha256", "git_sha1") if kind in row)
    return Stamp(hash_kind=kind, hash=row[kind], size=row["size"], mtime_ns=row["mtime_ns"], inode=row["inode"])
