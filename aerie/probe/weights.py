"""Weights that were staged: whether their files are still those that were verified, by stat alone."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any

from .reading import Later, join, names, optional, reading, text

__all__ = ["TOOLS", "weights"]

RECORDS = "/var/lib/aerie/weights"  # one a model, written when its staging ended verified
JOBS = "/var/lib/aerie/jobs"  # of stagings, also of those that did not end
TOOLS = {
    "aria2c": "/usr/bin/aria2c",
    "nginx": "/usr/sbin/nginx",
    "aerie-seeder.service": "/etc/systemd/system/aerie-seeder.service",
}
OWN = ".aerie"  # in a target, beside the model's files
ANSWER_S = 5.0  # 64 files take a millisecond; a file server that is gone takes forever


def weights(root: str = "/") -> dict[str, Any]:
    """The snapshot's weights. Reads stamps and the status of files, never what is in them."""
    asked = {target: Later(_staged, target, record, root) for target, record in _targets(root).items()}
    return {
        "tools": {name: os.path.exists(join(root, path)) for name, path in TOOLS.items()},
        "staged": {target: reading(later.get, ANSWER_S) for target, later in sorted(asked.items())},
    }


def _targets(root: str) -> dict[str, dict[str, Any]]:
    """What is known of each target: of a model that was verified its record, else what a staging job was told."""
    found: dict[str, dict[str, Any]] = {}
    for name in names(join(root, JOBS)):
        spec = _document(join(root, f"{JOBS}/{name}/spec.json")) if name.startswith("stage-") else None
        if spec and isinstance(spec.get("target"), str):
            found[spec["target"]] = {"model": spec.get("model")}
    for name in names(join(root, RECORDS)):
        record = _document(join(root, f"{RECORDS}/{name}")) if name.endswith(".json") else None
        if record and isinstance(record.get("target"), str):
            found[record["target"]] = record
    return found


def _staged(target: str, record: dict[str, Any], root: str) -> dict[str, Any]:
    folder = join(root, target)
    manifest = optional(os.path.join(folder, OWN, "manifest.json"))
    wanted = {row["path"]: row["size"] for row in json.loads(manifest)["files"]} if manifest else {}
    stamps = (_document(os.path.join(folder, OWN, "verified.json")) or {}).get("files") or {}
    there = _files(folder)
    stamped = [path for path in wanted if path in there and path in stamps]
    differing = {path: _difference(there[path], stamps[path], wanted[path]) for path in stamped}
    return {
        "model": str(record.get("model")),
        "manifest_sha256": _sha256(os.path.join(folder, OWN, "manifest.json")) if manifest else None,
        "verified_at": record.get("verified_at"),
        "receipt_sha256": record.get("receipt_sha256"),
        "files": len(wanted),
        "size_bytes": sum(wanted.values()),
        "missing": sorted(wanted.keys() - there.keys()),
        "unverified": sorted(path for path in wanted if path in there and path not in stamps),
        "extra": sorted(there.keys() - wanted.keys()) if manifest else [],
        "changed": {path: words for path, words in sorted(differing.items()) if words},
        "parts": _parts(os.path.join(folder, OWN, "parts")),
        "is_busy": _is_locked(os.path.join(folder, OWN, "lock"), root),
    }


def _files(folder: str) -> dict[str, os.stat_result]:
    """Every file below the folder by its relative path, aerie's own left out; a link is a link."""
    found = {}
    for place, folders, files in os.walk(folder):
        if place == folder:
            folders[:] = [name for name in folders if name != OWN]
        for name in files:
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = os.lstat(path)
    return found


def _difference(now: os.stat_result, stamp: dict[str, Any], size: int) -> str:
    """How the file differs from the one that was verified, "" when it does not."""
    if not stat.S_ISREG(now.st_mode):
        return "is no regular file"
    if now.st_size != size:
        return f"has {now.st_size} bytes of {size}"
    if now.st_mtime_ns != stamp.get("mtime_ns"):
        return "was written after it was verified"
    return "is another file than the one that was verified" if now.st_ino != stamp.get("inode") else ""


def _parts(folder: str) -> dict[str, int]:
    """Bytes on disk of files that are not whole, by path; a downloader's own notes are counted with their file."""
    found: dict[str, int] = {}
    for place, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(place, name)
            key = os.path.relpath(path, folder).removesuffix(".aria2").removesuffix(".part")
            found[key] = found.get(key, 0) + os.lstat(path).st_blocks * 512
    return dict(sorted(found.items()))


def _is_locked(path: str, root: str) -> bool:
    """Does a staging hold the target right now? Looked up, not tried: a try would be in its way."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    number = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in text(join(root, "/proc/locks")).splitlines())
    return any(row[1] == "FLOCK" and number in row for row in rows)


def _document(path: str) -> dict[str, Any] | None:
    """The JSON object in the file; None where there is none, or none that can be read: a torn one proves nothing."""
    try:
        found = json.loads(optional(path) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
