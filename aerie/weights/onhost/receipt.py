"""The proof of a staging: an in-toto statement (unsigned) beside the files, and the host's record that names it."""

import hashlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from aerie.runbook.step import write_atomic
from aerie.statement import dump, statement
from aerie.weights import manifest as manifests
from aerie.weights.onhost.spec import Spec
from aerie.weights.onhost.target import Target

__all__ = ["is_current", "record", "write"]

_PREDICATE: Final = "urn:aerie:staged:1"
_RECORD: Final = "aerie.staged/1"


def write(spec: Spec, *, fetched: dict[str, int], seconds: float, retries: int, tools: dict[str, str]) -> None:
    """Say for every file which hash it had here, and how it came. Replaces an earlier receipt."""
    source = spec.manifest.source
    files = [(file.path, "sha256" if file.sha256 else "gitBlob", file.hash) for file in spec.manifest.files]
    predicate: dict[str, Any] = {
        "model": spec.model,
        "manifest": {"sha256": spec.manifest_sha256, "files": len(spec.manifest.files),
                     "size_bytes": spec.manifest.size_bytes},
        "source": {"kind": source.kind, "location": source.location, "revision": source.revision},
        "host": socket.gethostname(),
        "target": str(spec.target),
        "verified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "fetched_bytes": fetched,
        "seconds": round(seconds, 3),
        "retries": retries,
        "tools": tools,
    }  # fmt: skip
    write_atomic(_path(spec), dump(statement(files, _PREDICATE, predicate)))


def is_current(spec: Spec) -> bool:
    """There is a receipt of this manifest, and beside it the manifest itself."""
    try:
        statement = json.loads(_path(spec).read_bytes())
        own = (Target(spec.target).own / "manifest.json").read_bytes()
        of = statement["predicate"]["manifest"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(of == spec.manifest_sha256 and own == manifests.dump(spec.manifest))


def record(spec: Spec) -> None:
    """Name the staged model where the probe looks for it; written only when it would say something new."""
    receipt = _path(spec).read_bytes()
    entry = {
        "schema": _RECORD,
        "model": spec.model,
        "target": str(spec.target),
        "manifest_sha256": spec.manifest_sha256,
        "receipt_sha256": hashlib.sha256(receipt).hexdigest(),
        "verified_at": json.loads(receipt)["predicate"]["verified_at"],
    }
    path = spec.records / f"{spec.model}.json"
    text = json.dumps(entry).encode() + b"\n"
    if not path.is_file() or path.read_bytes() != text:
        os.makedirs(path.parent, exist_ok=True)
        write_atomic(path, text)


def _path(spec: Spec) -> Path:
    return Target(spec.target).own / "receipt.json"
