"""CUDA extensions in aerie's environments, and the wheels that were kept for them, by records and status alone."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from .environments import FOLDER
from .reading import join, names, optional, reading, text

__all__ = ["extensions"]

STORE = "/var/lib/aerie/wheels"
JOBS = "/var/lib/aerie/jobs"  # of builds, which say where else wheels were kept
RECORDS = "aerie-extensions"  # in an environment, one record a package
KNOWN = ("flash-attn", "sgl-kernel", "sglang-kernel")  # looked for also where other hands installed them


def extensions(root: str = "/") -> dict[str, Any]:
    """The snapshot's extensions. Nothing large is read: what a library holds is in the record of its installation."""
    folder = join(root, FOLDER)
    places = {name: os.path.join(folder, name) for name in names(folder)}
    there = {name: path for name, path in places.items() if os.path.exists(os.path.join(path, "pyvenv.cfg"))}
    sites = {name: reading(_site, path) for name, path in there.items()}
    sites = {name: site for name, site in sites.items() if isinstance(site, str)}
    return {
        "torch": {name: torch for name, site in sites.items() if (torch := reading(_torch, site))},
        "installed": [row for name in sorted(sites) for row in _installed(name, there[name], sites[name])],
        "store": {digest: wheel for place in _stores(root) for digest, wheel in _wheels(join(root, place)).items()},
    }


def _site(path: str) -> str | None:
    libraries = os.path.join(path, "lib")
    found = [name for name in names(libraries) if name.startswith("python3")]
    return os.path.join(libraries, found[0], "site-packages") if found else None


def _torch(site: str) -> dict[str, Any] | None:
    """As torch's own file says, without importing it: that takes seconds."""
    said = optional(os.path.join(site, "torch", "version.py"))
    if said is None:
        return None
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", said, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)", said, re.MULTILINE)
    return {"version": version[1] if version else "", "cuda": cuda[1] if cuda else None}


def _installed(environment: str, path: str, site: str) -> list[dict[str, Any]]:
    infos = {}
    for name in names(site):
        if name.endswith(".dist-info"):
            package, _, version = name[: -len(".dist-info")].rpartition("-")
            infos[re.sub(r"[-_.]+", "-", package).lower()] = version
    records = os.path.join(path, RECORDS)
    recorded = [name[: -len(".json")] for name in names(records) if name.endswith(".json")]
    found = []
    for package in sorted({*recorded, *KNOWN} & infos.keys()):
        record = _document(os.path.join(records, f"{package}.json")) or {}
        libraries = record.get("libraries") or {}
        found.append(
            {
                "environment": environment,
                "package": package,
                "version": infos[package],
                "torch": record.get("torch"),
                "wheel_sha256": record.get("wheel_sha256"),
                "libraries": {name: row["code"] for name, row in libraries.items() if row["code"]},
                "changed": sorted(name for name, row in libraries.items() if not _is_same(site, name, row)),
            }
        )
    return found


def _is_same(site: str, name: str, row: dict[str, Any]) -> bool:
    try:
        status = os.stat(os.path.join(site, name))
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns, status.st_ino) == (row["bytes"], row["mtime_ns"], row["inode"])


def _stores(root: str) -> list[str]:
    found = {STORE: None}
    for name in names(join(root, JOBS)):
        spec = _document(join(root, f"{JOBS}/{name}/spec.json")) if name.startswith("extension-") else None
        if spec and isinstance(spec.get("store"), str):
            found[spec["store"]] = None
    return list(found)


def _wheels(place: str) -> dict[str, dict[str, Any]]:
    return {
        digest: _wheel(os.path.join(place, digest)) for digest in names(place) if not digest.startswith(".")
    }  # fmt: skip


def _wheel(folder: str) -> dict[str, Any]:
    """What a receipt says, and how the file beside it differs by its size, "" where it does not."""
    try:
        statement = json.loads(text(os.path.join(folder, "receipt.json")))
        told, name = statement["predicate"], statement["subject"][0]["name"]
        row = {"package": told["package"], "version": told["version"], "name": name, "how": told["how"]}
        size_bytes = told["size_bytes"]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {"package": "", "version": "", "name": "", "how": "", "damage": "no receipt that can be read"}
    try:
        seen = os.stat(os.path.join(folder, name)).st_size
        damage = "" if seen == size_bytes else f"{seen} bytes of {size_bytes}"
    except OSError:
        damage = "no wheel beside its receipt"
    return {**row, "damage": damage}


def _document(path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(optional(path) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
