"""The job on a host that brings one extension: fetch or build its wheel, keep it in the store, install, prove.

Standard library only. Its folder gets progress.json and, at the end, outcome.json (aerie.brought/1).
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.extensions import contents, crosscheck, environment, install, receipt, store
from aerie.extensions.contents import Contents
from aerie.extensions.environment import Environment
from aerie.extensions.fetching import fetch
from aerie.extensions.onhost.build import build
from aerie.extensions.onhost.request import Request
from aerie.extensions.store import Entry
from aerie.runbook.step import write_atomic

__all__ = ["OUTCOME", "SPEC", "run"]

SPEC: Final = "aerie.bringing/1"
OUTCOME: Final = "aerie.brought/1"
Spec = Mapping[str, Any]


def run(spec_file: Path, folder: Path) -> int:
    """Do what the document says; exit code 0 when the extension is installed and proved."""
    # Asked to stop: a build leaves its enclosure empty on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    spec: Spec = json.loads(spec_file.read_bytes())
    found: dict[str, Any] = {"schema": OUTCOME, "state": "failed", "digest": None, "build": None, "record": None}
    try:
        if spec["schema"] != SPEC:
            raise AerieError("job", seen=spec["schema"], expected=SPEC, remedy="Start it with ./invoke build.")
        _bring(spec, folder, found)
        found["state"] = "done"
    except AerieError as error:
        found["error"] = error.to_dict()
    except OSError as error:
        found["error"] = {
            "where": error.filename or str(folder),
            "seen": error.strerror or str(error),
            "expected": "room and permission to write",
            "remedy": "Mend it on the host, then run ./invoke build again: what was compiled is in the compiler cache.",
        }
    found["seconds"] = round(time.monotonic() - began, 3)
    write_atomic(folder / "outcome.json", json.dumps(found).encode())
    return 0 if found["state"] == "done" else 1


def _bring(spec: Spec, folder: Path, found: dict[str, Any]) -> None:
    there = environment.find(spec["environment"])
    if there is None:
        raise AerieError(
            f"environment {spec['environment']}", seen="not there", expected="the environment of the lock",
            remedy="./invoke provision --host HOST --layers python",
        )  # fmt: skip
    entry = _entry(spec, there, folder, found)
    found["digest"] = entry.digest
    try:
        _require_code(entry.wheel.name, entry.contents, spec, "Lock another wheel, or its source to build it.")
    except AerieError:
        found["state"] = "unfit"  # read and kept, so that the next look decides with it
        raise
    _tell(folder, f"installing {entry.wheel.name} into {there.name}")
    found["record"] = install.install(
        entry, there, module=spec["module"], torch=spec["torch"], capabilities=spec["capabilities"],
        unused=spec["unused"], cuobjdump=crosscheck.find(Path(spec["cuda_home"])),
    )  # fmt: skip


def _require_code(name: str, held: Contents, spec: Spec, remedy: str) -> None:
    if problems := contents.against(held, spec["capabilities"], spec["unused"]):
        raise AerieError(
            name, seen="; ".join(problems),
            expected=f"device code for {', '.join(map(contents.sm, spec['capabilities']))}",
            remedy=f"Nothing was installed. {remedy}",
        )  # fmt: skip


def _entry(spec: Spec, there: Environment, folder: Path, found: dict[str, Any]) -> Entry:
    """The wheel of the job in the store; one that is damaged is made again where it can be."""
    place = Path(spec["store"])
    make: Callable[[Spec, Environment, Path, dict[str, Any]], Entry] | None
    make = _build if spec["build"] else _fetch if spec["wheel"] else _take if spec["sent"] else None
    if spec["rebuild"]:
        store.set_aside(place, spec["digest"])
    try:
        entry = store.find(place, spec["digest"])
        if entry is not None:
            entry.check()
            return entry
    except store.Damaged as error:
        if make is None:
            store.set_aside(place, spec["digest"])
            raise
        found["replaced"] = str(error)
    if make is None:
        raise AerieError(
            str(place / spec["digest"]), seen="no such entry", expected="the wheel that was sent",
            remedy="Run ./invoke build again.",
        )  # fmt: skip
    return make(spec, there, folder, found)


def _take(spec: Spec, there: Environment, folder: Path, found: dict[str, Any]) -> Entry:
    """What the controller sent."""
    sent = Path(spec["sent"]["path"])
    _tell(folder, f"taking {sent.name} into the store")
    entry = store.add(Path(spec["store"]), spec["digest"], sent, spec["sent"]["statement"])
    sent.unlink()
    return entry


def _fetch(spec: Spec, there: Environment, folder: Path, found: dict[str, Any]) -> Entry:
    wheel = spec["wheel"]
    _tell(folder, f"fetching {wheel['name']}")
    file = fetch(
        "wheel", uri=wheel["uri"], sha256=wheel["sha256"], name=wheel["name"], package=spec["package"],
        version=spec["version"], environment=there, into=folder / "scratch",
    )  # fmt: skip
    _tell(folder, f"reading the device code of {file.name}")
    origin = {"uri": wheel["uri"], "sha256": wheel["sha256"]}
    told = receipt.of_wheel(file, package=spec["package"], version=spec["version"], origin=origin)
    entry = store.add(Path(spec["store"]), spec["digest"], file, told)
    file.unlink()
    return entry


def _build(spec: Spec, there: Environment, folder: Path, found: dict[str, Any]) -> Entry:
    source = spec["source"]
    _tell(folder, "fetching the source")
    archive = fetch(
        "source", uri=source["uri"], sha256=source["sha256"], name="", package=spec["package"],
        version=spec["version"], environment=there, into=folder / "scratch",
    )  # fmt: skip
    asked = {**spec["build"], "source": {"path": str(archive), **_named(source)}}
    asked |= {"work": str(folder / "work"), "out": str(folder / "out"), "python": str(there.python)}
    result = build(Request.parse(json.dumps(asked)), folder)
    found["build"] = result.to_dict()
    if result.failure is not None:
        raise result.failure
    assert result.wheel is not None, "a build without error has a wheel"
    if store.sha256_of(result.wheel) != result.wheel_sha256:
        raise store.Damaged(result.wheel, seen="another content", expected=f"sha256 {result.wheel_sha256}")
    told = receipt.of_wheel(
        result.wheel, package=spec["package"], version=spec["version"], key=spec["key"],
        origin={"uri": source["uri"], "sha256": source["sha256"]},
        build=_figures(result.to_dict()) | {"jobs": asked["jobs"], "patches": _names(asked["patches"])},
    )  # fmt: skip
    held = contents.parse(told["predicate"]["contents"])
    _require_code(result.wheel.name, held, spec, "Its build does not take the architectures from where it was told.")
    entry = store.add(Path(spec["store"]), spec["digest"], result.wheel, told)
    result.wheel.unlink()
    return entry


def _named(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source[name] for name in ("sha256", "folder")}


def _names(patches: list[dict[str, str]]) -> list[str]:
    return [one["name"] for one in patches]


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("wall_s", "cpu_s", "peak_bytes", "units_compiled", "units_cached", "held_back_s", "limited_by")
    return {name: result[name] for name in wanted}


def _tell(folder: Path, note: str) -> None:
    """progress.json as the build itself writes it."""
    record = {"at": time.time(), "done": 0, "total": None, "unit": "files", "note": note}
    write_atomic(folder / "progress.json", json.dumps(record).encode(), durable=False)
