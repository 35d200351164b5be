"""On a host: a job in a folder of its own, as controllers ask about it. Standard library only.

The folder holds spec.json, what the job was told; progress.json and outcome.json, which it writes itself; and what
`jobs` keeps. A job is "running", "ended" or "none".
"""

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from aerie.runbook import jobs
from aerie.runbook.step import write_atomic

__all__ = ["document", "poll", "start", "state", "stop"]

TIMEOUT_S: Final = 7 * 86400  # stalls are found by the work itself; this one ends what nobody asked about any more
OF_ATTEMPT: Final = ("result.json", "outcome.json", "progress.json", "started.json", "supervisor", "environ")
KEPT: Final = ("PATH", "HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
STOP_S: Final = 40.0


def start(folder: Path, spec: bytes, verb: str) -> dict[str, Any]:
    """{"job", "is_new"}: a job that runs, this one or one that ran already.

    verb: of this program, called with the paths of spec.json and of the folder.
    """
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if _job(folder) is not None:
            return {"job": "running", "is_new": False}
        unit = f"aerie-{folder.name}"
        if (folder / "started.json").exists():  # a supervisor that was killed may have left its work going on
            jobs.sweep(folder, unit=unit)
        for name in OF_ATTEMPT:
            (folder / name).unlink(missing_ok=True)
        write_atomic(folder / "spec.json", spec)
        argv = [sys.executable, "-I", "-S", sys.path[0], verb, str(folder / "spec.json"), str(folder)]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C.UTF-8"}
        job = jobs.start(folder, argv, environment, unit=unit, timeout_s=TIMEOUT_S, stall_s=None)
        write_atomic(folder / "started.json", json.dumps(job.to_dict()).encode())
    return {"job": "running", "is_new": True}


def poll(folder: Path) -> dict[str, Any]:
    """{"job", "progress", "outcome", "result", "log"}; the last three once it ended."""
    now = state(folder)  # before the outcome is read: one that is written in between is then seen the next time
    ended = now == "ended"
    return {
        "job": now,
        "progress": document(folder / "progress.json"),
        "outcome": document(folder / "outcome.json") if ended else None,
        "result": document(folder / "result.json") if ended else None,
        "log": list(jobs.tail(folder)) if ended else [],
    }


def stop(folder: Path) -> dict[str, Any]:
    """{"job"} after it was asked to end."""
    job = _job(folder)
    if job is not None:
        jobs.stop(job)
        jobs.wait(job, STOP_S)
    return {"job": state(folder)}


def state(folder: Path) -> str:
    """ "running", "ended" or "none"."""
    if _job(folder) is not None:
        return "running"
    return "ended" if (folder / "started.json").exists() else "none"


def document(file: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None where there is none that can be read."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _job(folder: Path) -> jobs.Job | None:
    """The job while it is alive."""
    return jobs.find(folder, document(folder / "started.json"))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two controllers that start at the same time find one job."""
    with open(folder / "start.lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
