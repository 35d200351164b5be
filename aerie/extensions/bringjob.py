"""On a host: what a controller asks about its extensions, and the job that brings one. Standard library only.

look           {"package", "wheels", "environment", "store", "folder", "running"} on stdin → what is there; no changes
start FOLDER   the document aerie.bringing/1 on stdin → {"job"}: a job that runs, this one or one that ran already
poll FOLDER    → {"job", "progress", "outcome", "log"}
stop FOLDER    → {"job"}: what was compiled is in the compiler cache
run SPEC FOLDER   the job itself
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.extensions import bringing, capacity, environment, install, running, store
from aerie.runbook import hostjobs

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Answer one question; its exit code."""
    verb, *rest = arguments
    if verb == "run":
        return bringing.run(Path(rest[0]), Path(rest[1]))
    try:
        document = _answer(verb, rest)
    except AerieError as error:
        document = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


def _answer(verb: str, rest: Sequence[str]) -> dict[str, Any]:
    if verb == "look":
        return _look(json.loads(sys.stdin.buffer.read()))
    folder = Path(rest[0])
    if verb == "start":
        return hostjobs.start(folder, sys.stdin.buffer.read(), "run")
    return hostjobs.poll(folder) if verb == "poll" else hostjobs.stop(folder)


def _look(asked: Mapping[str, Any]) -> dict[str, Any]:
    there = environment.find(asked["environment"])
    place = Path(asked["store"])
    rows = store.entries(place)
    return {
        "environment": there and {"path": str(there.path), **there.facts()},
        "installed": there and _installed(there, asked["package"]),
        "store": [row.to_dict() for row in rows if isinstance(row, store.Entry) and _is_asked(row, asked)],
        "damaged": [str(row) for row in rows if isinstance(row, store.Damaged)],
        "capacity": asdict(capacity.read()),
        "running": [asdict(one) for one in running.read(asked["running"])],
        "free_bytes": _free(place),
        "job": hostjobs.state(Path(asked["folder"])),
    }


def _is_asked(row: store.Entry, asked: Mapping[str, Any]) -> bool:
    """Is it of this package, or one of the wheels that the lock has for it?"""
    return row.package == asked["package"] or row.sha256 in asked["wheels"]


def _installed(there: environment.Environment, package: str) -> dict[str, Any] | None:
    version = there.version_of(package)
    if version is None:
        return None
    record = install.record_of(there, package)
    changed = install.changed(there, record) if record else []
    return {"version": version, "record": record, "changed": changed}


def _free(place: Path) -> int:
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize
