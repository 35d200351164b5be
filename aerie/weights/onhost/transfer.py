"""Moves one file from one source into its part: asks for the address, starts a backend, watches its bytes."""

import asyncio
import ctypes
import errno
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerie.errors import AerieError
from aerie.weights.manifest import File
from aerie.weights.onhost import address, backends
from aerie.weights.onhost.backends import Command, Fault
from aerie.weights.onhost.children import Child
from aerie.weights.onhost.ledger import Active
from aerie.weights.onhost.wanted import Place

__all__ = ["Outcome", "Settings", "host_error", "make_empty", "size_of", "transfer"]

POLL_S: Final = 0.25
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE, linux/falloc.h
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every transfer of a staging shares. lock: see children.py."""

    stall_s: float
    hub_python: Path
    lock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a transfer ended. fault: None when the part has the file's size, or has grown by what a peer has of it.

    status, wait_s: as the source said.
    """

    fault: Fault | None = None
    reason: str = ""
    status: int = 0
    wait_s: float | None = None


async def transfer(
    file: File, part: Path, place: Place, backend: str, settings: Settings, active: Active
) -> Outcome:  # fmt: skip
    """Continue the part until it is whole, the peer has no more, or something comes between.

    Raises AerieError for a fault of this host.
    """
    before = size_of(part)
    try:
        command = await _prepare(file, part, place, backend, settings)
    except address.Refused as refused:
        return Outcome(fault=Fault.AGAIN, reason=refused.reason, status=refused.status, wait_s=refused.wait_s)
    except OSError as error:
        raise host_error(part, error.strerror or str(error)) from error
    try:
        outcome = await _watch(command, settings, active)
    finally:
        if command.grows != part:
            shutil.rmtree(command.grows, ignore_errors=True)
        backends.control_file(part).unlink(missing_ok=True)
    have = size_of(part)
    if outcome.fault is Fault.HOST:
        raise host_error(part, outcome.reason)
    if outcome.fault is None and have < file.size and (backend != "piece" or have <= before):
        return Outcome(fault=Fault.AGAIN, reason=f"{command.name} ended at {have} of {file.size} bytes")
    if have > file.size:
        return Outcome(fault=Fault.RESTART, reason=f"the source gave {have} bytes of {file.size}")
    return outcome


def size_of(path: Path) -> int:
    """Bytes in a file, or in all files of a folder; 0 where there is none."""
    total = 0
    with suppress(OSError):
        if not path.is_dir():
            return path.stat().st_size
        for folder, _, names in os.walk(path):
            for name in names:
                with suppress(OSError):
                    total += Path(folder, name).stat().st_size
    return total


def make_empty(part: Path) -> None:
    """Make a part of no bytes, for which nobody need be asked. Raises AerieError where the host cannot."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"")
    except OSError as error:
        raise host_error(part, error.strerror or str(error)) from error


def host_error(part: Path, reason: str) -> AerieError:
    """A fault of this host's disk or programs, which no other source mends."""
    free = "unknown"
    with suppress(OSError):
        room = os.statvfs(part.parent)
        free = f"{room.f_bavail * room.f_frsize} bytes"
    return AerieError(
        str(part), seen=f"{reason} (free there: {free})", expected="a file system that takes the model's files",
        remedy="Make room or mend the file system, then stage again: what has arrived is kept.",
    )  # fmt: skip


async def _prepare(file: File, part: Path, place: Place, backend: str, settings: Settings) -> Command:
    """The program to start, when the source has said that it has the file."""
    part.parent.mkdir(parents=True, exist_ok=True)
    if backend == "piece":
        command = backends.piece_of(place.addresses(file.path), part, size_of(part), file.size, settings.stall_s)
    elif place.kind in ("hub", "http"):
        token = address.read_token(place.token_file)
        url = address.file_url(place.url, file.path)
        found = await asyncio.to_thread(address.ask, url, token, file)
        if backend == "hub":
            own = backends.hub(place.url, token, file.path, part, settings.hub_python, settings.stall_s)
            if own is not None:
                shutil.rmtree(own.grows, ignore_errors=True)
                own.grows.mkdir()
                return own
        backends.control_file(part).unlink(missing_ok=True)
        command = backends.aria2(found, part, file.size, settings.stall_s)
    elif place.kind == "folder":
        command = _copy(file, part, place)
    else:
        command = backends.rsync(place.url, file.path, part)
    _reserve(part, file.size)
    return command


def _copy(file: File, part: Path, place: Place) -> Command:
    try:
        size = os.stat(place.url + file.path).st_size
    except OSError as error:
        raise address.Refused(f"{error.strerror}: {error.filename}", status=404) from None
    if size != file.size:
        raise address.Refused(f"another file lies there: {size} bytes, the manifest says {file.size}", status=409)
    return backends.copy(place.url, file.path, part, size_of(part))


def _reserve(part: Path, size: int) -> None:
    """Take the disk's space for the whole file now, without changing the part's size. Raises OSError when full."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if libc.fallocate(descriptor, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)) != 0:
            number = ctypes.get_errno()
            if number in _FULL:  # some file systems cannot reserve; they will say so when they are full
                raise OSError(number, os.strerror(number), str(part))
    finally:
        os.close(descriptor)


async def _watch(command: Command, settings: Settings, active: Active) -> Outcome:
    """Run the program; kill it when no byte has come for stall_s."""
    try:
        child = await Child.start(
            command.argv, lock=settings.lock, stdin=command.stdin,
            folder=command.folder, environment=command.environment,
        )  # fmt: skip
    except OSError as error:
        raise host_error(command.grows, f"{command.argv[0]}: {error.strerror}") from error
    try:
        moved = time.monotonic()
        active.bytes = size_of(command.grows)
        while (ended := await child.wait(POLL_S)) is None:
            size, now = size_of(command.grows), time.monotonic()
            if size != active.bytes:
                active.bytes, moved = size, now
            elif now - moved >= settings.stall_s:
                return Outcome(fault=Fault.AGAIN, reason=f"no byte for {settings.stall_s:g} s")
    finally:
        await child.kill()
    active.bytes = size_of(command.grows)
    if ended.exit_code == 0:
        return Outcome()
    fault, reason = backends.fault(command.name, ended)
    return Outcome(fault=fault, reason=reason)
