"""On a host: what a controller asks about a staging, and the job that it becomes. Standard library only.

look           spec on stdin → {"plan", "resident_bytes", "job", …}: what is there; changes nothing
start FOLDER   spec on stdin → {"job"}: a job that runs, this one or one that ran already
poll FOLDER    → {"job", "progress", "outcome", "log"}
stop FOLDER    → {"job"}: what has arrived is kept
check MODEL TARGET MANIFEST_SHA256   → the verdict on every file, all of them hashed

"job" is "running", "ended" or "none". The folder of a job lies in JOBS and is named by model and manifest.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.runbook import jobs
from aerie.runbook.step import write_atomic
from aerie.weights.onhost import main as verbs

__all__ = ["main"]

TIMEOUT_S: Final = 7 * 86400  # stalls are found by the staging itself; this one ends what nobody asked about any more
OF_ATTEMPT: Final = ("result.json", "outcome.json", "progress.json", "started.json", "supervisor", "environ")
KEPT: Final = ("PATH", "HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
STOP_S: Final = 40.0
RECORDS: Final = "/var/lib/aerie/weights"
SEEDER: Final = ("/usr/sbin/nginx", "/etc/systemd/system/aerie-seeder.service")


def main(arguments: Sequence[str]) -> int:
    """Answer one question; its exit code. Verbs that are not told above are those of a staging itself."""
    verb, *rest = arguments
    if verb == "look":
        document = _look(sys.stdin.buffer.read())
    elif verb == "start":
        document = _start(Path(rest[0]), sys.stdin.buffer.read())
    elif verb == "poll":
        document = _poll(Path(rest[0]))
    elif verb == "stop":
        document = _stop(Path(rest[0]))
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
        "job": _state(Path(told["folder"])) if "folder" in told else "none",
        "is_recorded": _is_recorded(told, plan.get("manifest_sha256")),
        "can_seed": all(os.path.exists(path) for path in SEEDER),
    }


def _is_recorded(spec: Mapping[str, Any], manifest_sha256: str | None) -> bool:
    """Does the host's record of staged models name this target and manifest?"""
    record = _document(Path(spec.get("records", RECORDS), f"{spec['model']}.json")) or {}
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


def _start(folder: Path, spec: bytes) -> dict[str, Any]:
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if _job(folder) is not None:
            return {"job": "running", "is_new": False}
        unit = f"aerie-{folder.name}"
        if (folder / "started.json").exists():  # a supervisor that was killed may have left its staging at work
            jobs.sweep(folder, unit=unit)
        for name in OF_ATTEMPT:
            (folder / name).unlink(missing_ok=True)
        write_atomic(folder / "spec.json", spec)
        argv = [sys.executable, "-I", "-S", sys.path[0], "stage", str(folder / "spec.json"), str(folder)]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C.UTF-8"}
        job = jobs.start(
            folder, argv, environment, unit=unit, timeout_s=TIMEOUT_S, stall_s=None
        )  # fmt: skip
        write_atomic(folder / "started.json", json.dumps(job.to_dict()).encode())
    return {"job": "running", "is_new": True}


def _poll(folder: Path) -> dict[str, Any]:
    state = _state(folder)  # before the outcome is read: one that is written in between is then seen the next time
    ended = state == "ended"
    return {
        "job": state,
        "progress": _document(folder / "progress.json"),
        "outcome": _document(folder / "outcome.json") if ended else None,
        "result": _document(folder / "result.json") if ended else None,
        "log": list(jobs.tail(folder)) if ended else [],
    }


def _stop(folder: Path) -> dict[str, Any]:
    job = _job(folder)
    if job is not None:
        jobs.stop(job)
        jobs.wait(job, STOP_S)
    return {"job": _state(folder)}


def _check(model: str, target: str, manifest_sha256: str) -> dict[str, Any]:
    """Hash every file by the manifest that lies beside them, where that is the one that is meant."""
    file = Path(target, ".aerie", "manifest.json")
    text = file.read_bytes()
    if (seen := hashlib.sha256(text).hexdigest()) != manifest_sha256:
        raise AerieError(str(file), seen=f"sha256 {seen}", expected=manifest_sha256, remedy="Stage the model again.")
    spec = {"schema": "aerie.staging/1", "model": model, "target": target, "manifest": json.loads(text), "sources": []}
    return _ask("check", json.dumps(spec).encode(), "--deep")


def _state(folder: Path) -> str:
    if _job(folder) is not None:
        return "running"
    return "ended" if (folder / "started.json").exists() else "none"


def _job(folder: Path) -> jobs.Job | None:
    """The job while it is alive."""
    return jobs.find(folder, _document(folder / "started.json"))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two controllers that start at the same time find one job."""
    with open(folder / "start.lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _document(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
