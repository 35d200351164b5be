"""Installing a wheel of the store into an environment, and the record of it that later looks compare with.

Standard library only.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.extensions import contents, crosscheck
from aerie.extensions.contents import Contents, Group
from aerie.extensions.environment import Environment
from aerie.extensions.store import Entry
from aerie.runbook.step import write_atomic

__all__ = ["RECORD", "changed", "install", "record_of"]

RECORD: Final = "aerie.extension/1"
PIP_S: Final = 1800.0
IMPORT_S: Final = 300.0


def install(
    entry: Entry,
    environment: Environment,
    *,
    module: str,
    torch: str,
    capabilities: Sequence[str],
    unused: Sequence[str] = (),
    cuobjdump: Path | None = None,
) -> dict[str, Any]:
    """Install, look into what is installed, import it in a fresh process, and leave the record, which is returned.

    torch: the environment's. cuobjdump: the program; what it lists otherwise stands in the record's "cross_check",
    which is null without it. Raises store.Damaged, and AerieError where pip, a library's device code or the import
    speaks against it: what does not load or has no code for the GPUs is taken out again.
    """
    entry.check()
    options = [
        "--quiet",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ]
    _pip(environment, ["install", *options, str(entry.wheel)])
    try:
        found = _installed(environment, entry.package)
        there = Contents(libraries={name: row[1] for name, row in found.items() if row[1]})
        if problems := contents.against(there, capabilities, unused):
            raise AerieError(
                f"{entry.package} in environment {environment.name}",
                seen="; ".join(problems),
                expected=f"device code for {', '.join(map(contents.sm, capabilities))}",
                remedy="It was taken out again. Lock another wheel, or its source to build it.",
            )
        _import(environment, entry, module)
        checked = None if cuobjdump is None else _cross_check(environment, entry.package, cuobjdump, list(found))
    except AerieError:
        (environment.records / f"{entry.package}.json").unlink(missing_ok=True)
        _pip(environment, ["uninstall", "--quiet", "--yes", entry.package])
        raise
    record = {
        "schema": RECORD,
        "package": entry.package,
        "version": entry.version,
        "environment": environment.name,
        "wheel": entry.wheel.name,
        "wheel_sha256": entry.sha256,
        "digest": entry.digest,
        "torch": torch,
        "unused": list(unused),
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cross_check": checked,
        "libraries": {name: {**stamp, "code": _rows(groups)} for name, (stamp, groups) in found.items()},
    }
    environment.records.mkdir(exist_ok=True)
    write_atomic(environment.records / f"{entry.package}.json", json.dumps(record).encode() + b"\n")
    return record


def record_of(environment: Environment, package: str) -> dict[str, Any] | None:
    """The record of a package, None where there is none that can be read."""
    try:
        found = json.loads((environment.records / f"{package}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == RECORD else None


def _installed(environment: Environment, package: str) -> dict[str, tuple[Mapping[str, int], tuple[Group, ...]]]:
    """Stamp and device code of every library of an installed package, by its path below site-packages."""
    info = environment.info_of(package)
    if info is None:
        raise AerieError(
            f"{package} in environment {environment.name}",
            seen="not installed",
            expected="what its wheel names",
            remedy="The wheel holds another package than the lock says: lock the right one.",
        )
    site = info.parent
    names = [row.split(",")[0] for row in (info / "RECORD").read_text(encoding="utf-8").splitlines()]
    libraries = [name for name in names if _is_library(name)]
    code = contents.of_folder(site, libraries)
    return {name: (_stamp(site / name), code.get(name, ())) for name in libraries}


def _cross_check(environment: Environment, package: str, cuobjdump: Path, names: Sequence[str]) -> dict[str, Any]:
    info = environment.info_of(package)
    assert info is not None, "its libraries were read there"
    return {"by": str(cuobjdump), "differences": list(crosscheck.differences(cuobjdump, info.parent, names))}


def _is_library(name: str) -> bool:
    return name.endswith(".so") or ".so." in os.path.basename(name)


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def _rows(groups: Sequence[Group]) -> list[list[Any]]:
    return [[one.units, *one.code] for one in groups]


def _pip(environment: Environment, arguments: Sequence[str]) -> None:
    try:
        done = environment.run(["-m", "pip", *arguments], PIP_S)
        said = (done.stderr.strip() or done.stdout.strip()) if done.returncode else ""
    except subprocess.TimeoutExpired:
        said = f"no end after {PIP_S:g} s"
    if said:
        raise AerieError(
            f"pip {arguments[0]} in environment {environment.name}",
            seen="\n".join(said.splitlines()[-10:]),
            expected="an end without error",
            remedy=f"Try it there: {environment.python} -m pip {' '.join(arguments)}",
        )


def _import(environment: Environment, entry: Entry, module: str) -> None:
    """torch first, as every user of such a library does: it loads the CUDA libraries that the extension links to."""
    try:
        done = environment.run(["-c", f"import torch, {module}"], IMPORT_S)
        said = (done.stderr.strip() or f"exit {done.returncode}") if done.returncode else ""
    except subprocess.TimeoutExpired:
        said = f"no end after {IMPORT_S:g} s"
    if said:
        raise AerieError(
            f"import {module} in environment {environment.name}",
            seen="\n".join(said.splitlines()[-10:]),
            expected=f"{entry.wheel.name} to load in a fresh process",
            remedy="It was taken out again. ./invoke build --plan says for which torch each wheel is.",
        )


def changed(environment: Environment, record: Mapping[str, Any]) -> list[str]:
    """The libraries that are not those that were installed, by their size, time and inode."""
    info = environment.info_of(record["package"])
    if info is None:
        return sorted(record["libraries"])
    return sorted(name for name, row in record["libraries"].items() if not _is_same(info.parent / name, row))


def _is_same(path: Path, row: Mapping[str, Any]) -> bool:
    try:
        return all(row[name] == value for name, value in _stamp(path).items())
    except OSError:
        return False
