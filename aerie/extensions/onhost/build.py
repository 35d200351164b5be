"""The job: check, unpack, patch, build inside the enclosure, read the wheel.

Its folder gets progress.json and outcome.json (aerie.built/1); `work` keeps build.log, what the build said.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aerie.errors import AerieError
from aerie.extensions import device_code
from aerie.extensions.onhost import backend, source, toolchain
from aerie.extensions.onhost.enclosure import Enclosure, enclose
from aerie.extensions.onhost.first_error import first_error
from aerie.extensions.onhost.gate import tree_bytes
from aerie.extensions.onhost.request import Request, Result
from aerie.extensions.onhost.units import Units, read_units
from aerie.runbook.step import write_atomic
from aerie.runbook.supervise import MARKER

__all__ = ["build"]

POLL_S: Final = 0.25
TELL_EVERY: Final = 8  # polls


def build(request: Request, folder: Path) -> Result:
    """The wheel of a request, in its `out`, or the error. Always writes outcome.json into the job's folder."""
    began = time.monotonic()
    try:
        with _ended_in_order():
            result = _build(request, folder)
    except AerieError as error:
        result = Result(error=error.to_dict())
    except OSError as error:
        result = Result(error=_of_system(error, request.work).to_dict())
    result = replace(result, wall_s=round(time.monotonic() - began, 3))
    write_atomic(folder / "outcome.json", json.dumps(result.to_dict()).encode())
    return result


def _build(request: Request, folder: Path) -> Result:
    for path in (request.work, request.out):
        path.mkdir(parents=True, exist_ok=True)
    _remove(request.work, "src", "tools", "tmp", "wheel")  # left by one that was ended; its objects are in the cache
    _tell(folder, 0, "checking the compilers")
    compilers = toolchain.check(request)
    _tell(folder, 0, "unpacking the source")
    top = source.unpack(request.source, request.work / "src")
    for patch in request.patches:
        source.apply(patch, top)
    for made in ("tools", "tmp", "wheel"):
        (request.work / made).mkdir()
    name = f"aerie-build-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    with enclose(request.budget_bytes, name) as enclosure:
        variables = toolchain.variables(request, compilers, enclosure, request.work / "tools")
        argv = [str(request.python), backend.__file__, str(request.work / "wheel")]
        ran = _run(enclosure.argv(argv), variables, top, folder, request.work)
        result = Result(
            cpu_s=round(ran.cpu_s, 3),
            peak_bytes=enclosure.peak_bytes or ran.seen_bytes,
            units_compiled=ran.units.compiled,
            units_cached=ran.units.cached,
            units_again=ran.units.again,
            held_back_s=round(ran.units.held_back_s, 3),
            limited_by=enclosure.limited_by,
            notes=tuple(filter(None, (enclosure.note, _ninja(variables["PATH"])))),
        )
        if ran.code != 0:
            return replace(result, error=_first(request, enclosure).to_dict())
    return _with_wheel(result, request)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Asked to stop (SIGTERM), the process leaves by way of the enclosure, which is emptied and removed then."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first(request: Request, enclosure: Enclosure) -> AerieError:
    log = request.work / "build.log"
    with open(log, errors="replace") as lines:
        return first_error(lines, log=log, killed=enclosure.killed, budget_bytes=request.budget_bytes)


def _with_wheel(result: Result, request: Request) -> Result:
    """The result with what was built, moved to where it was asked for."""
    made = sorted((request.work / "wheel").glob("*.whl"))
    if len(made) != 1:
        raise AerieError(
            str(request.work / "wheel"), seen=f"{len(made)} wheels", expected="one",
            remedy=f"What the build said is in {request.work / 'build.log'}",
        )  # fmt: skip
    with open(made[0], "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        libraries = device_code.read(file, made[0].name)
    wheel = request.out / made[0].name
    # Under a name of its own first: `out` may be on another disk, and whoever looks there sees a whole file or none.
    part = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    shutil.copyfile(made[0], part)
    os.replace(part, wheel)
    _remove(request.work, "src", "tmp", "wheel")
    code = {library.name: tuple(sorted({_name(entry) for entry in library.entries})) for library in libraries}
    return replace(result, wheel=wheel, wheel_sha256=sha256, device_code=code)


def _name(entry: device_code.Entry) -> str:
    return entry.arch.replace("sm_", "compute_") if entry.kind == "ptx" else entry.arch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """seen_bytes: the most memory that it was seen to hold."""

    code: int
    cpu_s: float
    seen_bytes: int
    units: Units


def _run(argv: list[str], variables: dict[str, str], cwd: Path, folder: Path, work: Path) -> _Ran:
    """Run the package's own build to its end, and tell meanwhile how far it is."""
    if MARKER in os.environ:  # by which a supervisor finds everything that belongs to its job
        variables = variables | {MARKER: os.environ[MARKER]}
    seen_bytes, polls, pid = 0, 0, 0
    with open(work / "build.log", "wb") as log:
        child = subprocess.Popen(argv, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    while not pid:
        if polls % TELL_EVERY == 0:
            units = read_units(work / "tools")
            held_back = f", {units.held_back_s:.0f} s held back for memory" if units.held_back_s >= 1 else ""
            told = f"{units.compiled} compiled, {units.cached} from the cache{held_back}"
            _tell(folder, units.compiled + units.cached, told)
        polls += 1
        seen_bytes = max(seen_bytes, tree_bytes(child.pid))
        time.sleep(POLL_S)
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    child.returncode = os.waitstatus_to_exitcode(status)  # else its destructor would wait for a process that is gone
    return _Ran(
        code=child.returncode,
        cpu_s=usage.ru_utime + usage.ru_stime,
        seen_bytes=seen_bytes,
        units=read_units(work / "tools"),
    )


def _ninja(path: str) -> str:
    # torch's builds fall back to this silently: a warning among thousands of lines.
    if shutil.which("ninja", path=path):
        return ""
    return "ninja is not in the environment: what builds by torch or CMake may compile its files one after another."


def _tell(folder: Path, done: int, note: str) -> None:
    """progress.json as steps write it, "at" first: a watchdog compares what follows it."""
    record = {"at": time.time(), "done": done, "total": None, "unit": "files", "note": note}
    write_atomic(folder / "progress.json", json.dumps(record).encode(), durable=False)


def _remove(work: Path, *names: str) -> None:
    for name in names:
        if (work / name).exists():
            shutil.rmtree(work / name)


def _of_system(error: OSError, work: Path) -> AerieError:
    return AerieError(
        error.filename or str(work), seen=error.strerror or str(error), expected="a place to build that can be written",
        remedy="Make room or mend it on the host, then build again: what was compiled is in the compiler cache.",
    )  # fmt: skip
