"""On a host: what a controller asks about a staging, and the job that it becomes. Standard library only.

look           spec on stdin → {"plan", "resident_bytes", "job", …}: what is there; changes nothing
start FOLDER   spec on stdin → {"job"}: a job that runs, this one or one that ran already
poll FOLDER    → {"job", "progress", "outcome", "log"}
stop FOLDER    → {"job"}: what has arrived is kept
check MODEL TARGET MANIFEST_SHA256   → the verdict on every file, all of them hashed

"job" is "running", "ended" or "none". The folder of a job lies in JOBS and is named by model and manifest.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.runbook import hostjobs
from aerie.weights.onhost import main as verbs

__all__ = ["main"]

RECORDS: Final = "/var/lib/aerie/weights"
SEEDER: Final = ("/usr/sbin/nginx", "/etc/systemd/system/aerie-seeder.service")


def main(arguments: Sequence[str]) -> int:
    """Answer one question; its exit code. Verbs that are not told above are those of a staging itself."""
    verb, *rest = arguments
    if verb == "look":
        document = _look(sys.stdin.buffer.read())
    elif verb == "start":
        document = hostjobs.start(Path(rest[0]), sys.stdin.buffer.read(), "stage")
    elif verb == "poll":
        document = hostjobs.poll(Path(rest[0]))
    elif verb == "stop":
        document = hostjobs.stop(Path(rest[0]))
    elif verb == "check" and len(rest) == 3:
        document = _check(*rest)
    else:
        return verbs.main(arguments)
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


def _look(spec: bytes) -> dict[str, Any]:
    told = json.loads(spec)
    plan = _ask("plan", spec)
    is_whole = "files" in plan and plan["files"]["total"] == plan["files"]["verified"]
    return {
        "plan": plan,
        "resident_bytes": _ask("residency", spec)["bytes"] if is_whole else None,
        "job": hostjobs.state(Path(told["folder"])) if "folder" in told else "none",
        "is_recorded": _is_recorded(told, plan.get("manifest_sha256")),
        "can_seed": all(os.path.exists(path) for path in SEEDER),
    }


def _is_recorded(spec: Mapping[str, Any], manifest_sha256: str | None) -> bool:
    """Does the host's record of staged models name this target and manifest?"""
    record = hostjobs.document(Path(spec.get("records", RECORDS), f"{spec['model']}.json")) or {}
    return (record.get("target"), record.get("manifest_sha256")) == (spec["target"], manifest_sha256)


def _ask(verb: str, spec: bytes, *options: str) -> dict[str, Any]:
    """What a verb of the staging prints. folder: of the job, which the staging itself does not know."""
    told = {key: value for key, value in json.loads(spec).items() if key != "folder"}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file, io.StringIO() as said:
        json.dump(told, file)
        file.flush()
        with contextlib.redirect_stdout(said):
            verbs.main([verb, file.name, *options])
        found: dict[str, Any] = json.loads(said.getvalue())
    return found


def _check(model: str, target: str, manifest_sha256: str) -> dict[str, Any]:
    """Hash every file by the manifest that lies beside them, where that is the one that is meant."""
    file = Path(target, ".aerie", "manifest.json")
    text = file.read_bytes()
    if (seen := hashlib.sha256(text).hexdigest()) != manifest_sha256:
        raise AerieError(str(file), seen=f"sha256 {seen}", expected=manifest_sha256, remedy="Stage the model again.")
    spec = {"schema": "aerie.staging/1", "model": model, "target": target, "manifest": json.loads(text), "sources": []}
    return _ask("check", json.dumps(spec).encode(), "--deep")
