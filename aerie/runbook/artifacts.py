"""The files a step left: their manifest, and whether they are still what was written down."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.errors import StepFailed
from aerie.runbook.keys import file_hash

__all__ = ["Damage", "check", "manifest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One file that is no longer what its step left. seen: "hash differs", "gone", "size 10, expected 12 bytes"."""

    path: str
    seen: str

    def __str__(self) -> str:
        return f"{self.path}: {self.seen}"


def manifest(folder: Path) -> list[dict[str, Any]]:
    """Every file below `folder` as {path, sha256, size_bytes, mtime_ns, inode}, by path.

    Raises StepFailed for anything that is neither a folder nor a plain file: a link may change behind its hash.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StepFailed(
                f"artifact {path.relative_to(folder)}", seen="a link or device", expected="plain files in `out`",
                remedy="Copy the file into the step's folder.",
            )  # fmt: skip
        if path.is_file():
            files.append(path)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # hashlib lets go of the interpreter lock
        return list(pool.map(lambda path: _record(folder, path), files))


def check(folder: Path, recorded: Sequence[Mapping[str, Any]], *, deep: bool) -> Damage | None:
    """The first of the recorded files that differs; None when all are as they were.

    deep: hash every file; otherwise only those whose size, time or inode differs from the record.
    """
    for artifact in recorded:
        if (damage := _check_one(folder, artifact, deep=deep)) is not None:
            return damage
    return None


def _check_one(folder: Path, artifact: Mapping[str, Any], *, deep: bool) -> Damage | None:
    path, name = folder / artifact["path"], artifact["path"]
    try:
        status = path.lstat()
        if status.st_size != artifact["size_bytes"]:
            return Damage(path=name, seen=f"size {status.st_size}, expected {artifact['size_bytes']} bytes")
        is_same = (status.st_mtime_ns, status.st_ino) == (artifact["mtime_ns"], artifact["inode"])
        if (deep or not is_same) and file_hash(path) != artifact["sha256"]:
            return Damage(path=name, seen="hash differs")
    except FileNotFoundError:
        return Damage(path=name, seen="gone")
    except OSError as error:
        return Damage(path=name, seen=error.strerror or str(error))
    return None


def _record(folder: Path, path: Path) -> dict[str, Any]:
    status = path.stat()
    return {
        "path": str(path.relative_to(folder)),
        "sha256": file_hash(path),
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "inode": status.st_ino,
    }
