"""Everything that can be known before the first byte: room, rights, memory, tools, and whether the source will answer.

Nothing is changed here. What makes a staging impossible is a problem; the rest is told.
"""

import os
import shutil
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.weights.manifest import File
from aerie.weights.onhost import address, backends, partials, peers, quota, warm
from aerie.weights.onhost.spec import Origin, Spec
from aerie.weights.onhost.survey import State, Survey
from aerie.weights.onhost.target import Target

__all__ = ["Preflight", "look", "problems", "to_dict"]

_FOR_GOOD: Final = (401, 403, 404, 409, 410, 451)
_RSYNC_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A source's answer for one missing file. status: of HTTP, 0 where there is none; answer: "ok" or why not."""

    name: str
    kind: str
    url: str
    path: str
    answer: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was seen. folder: the nearest one above or at the target that exists; aria2: its version, "" without it."""

    folder: Path
    is_writable: bool
    is_read_only: bool
    is_root_file_system: bool
    is_one_file_system: bool
    free_bytes: int
    free_inodes: int | None
    needed_bytes: int
    needed_inodes: int
    quotas: tuple[quota.Quota, ...]
    memory_bytes: int
    available_bytes: int
    why_not_warm: str | None
    partials: tuple[partials.Partial, ...]
    asked: tuple[Asked, ...]
    at_peers: frozenset[str]  # asked only when no origin gives
    token_faults: tuple[AerieError, ...]
    backends: tuple[str, ...]
    missing_tools: tuple[str, ...]
    aria2: str


def look(spec: Spec, survey: Survey) -> Preflight:
    """See what there is. Asks the sources only when something is to be fetched."""
    folder = _existing(spec.target)
    room = os.statvfs(folder)
    to_fetch = survey.to_fetch
    faults = [] if not to_fetch else [_token_fault(one) for one in spec.sources if one.token_file]
    may_ask = bool(to_fetch) and spec.may_use_origin and not any(faults)
    asked = _ask_all(spec, to_fetch[0].file) if may_ask else ()
    usable = backends.available(spec.backends, spec.hub_python)
    is_root = os.stat(folder).st_dev == os.stat("/").st_dev
    return Preflight(
        folder=folder,
        is_writable=os.access(folder, os.W_OK | os.X_OK),
        is_read_only=bool(room.f_flag & os.ST_RDONLY),
        is_root_file_system=is_root,
        is_one_file_system=_is_one(Target(spec.target)),
        free_bytes=room.f_bavail * room.f_frsize,
        free_inodes=room.f_favail if room.f_files else None,  # btrfs has no fixed number
        needed_bytes=int(survey.needed_bytes * (1 + spec.margin)),
        needed_inodes=2 * len(survey.of(State.MISSING, State.WRONG_SIZE)),  # with their folders
        quotas=quota.quotas(folder),
        memory_bytes=warm.memory_bytes(),
        available_bytes=_available_bytes(),
        why_not_warm=warm.why_not(spec.warm, spec.manifest.size_bytes, warm.memory_bytes()),
        partials=partials.find(Target(spec.target)),
        asked=asked,
        at_peers=_at_peers(spec) if _is_refused(asked) else frozenset(),
        token_faults=tuple(fault for fault in faults if fault is not None),
        backends=usable,
        missing_tools=_missing_tools(spec, usable) if to_fetch else (),
        aria2=_aria2_version(),
    )  # fmt: skip


def problems(spec: Spec, survey: Survey, seen: Preflight) -> tuple[AerieError, ...]:
    """What makes the staging impossible, none when it may begin. Pure."""
    where = str(spec.target)
    found = list(seen.token_faults)
    found += [
        AerieError(
            f"{where}/{one.file.path}", seen="a link, a folder or a device, there or on the way there",
            expected="a regular file in real folders", remedy="Move it away; aerie overwrites no such thing.",
        )
        for one in survey.of(State.OBSTACLE)
    ]  # fmt: skip
    if survey.is_verified:
        return tuple(found)
    if seen.is_read_only or not seen.is_writable:
        found.append(AerieError(
            str(seen.folder), seen="read-only" if seen.is_read_only else "no right to write",
            expected="a folder that this user may write", remedy="Mount it writable, or name another weights_path.",
        ))  # fmt: skip
    if not seen.is_one_file_system:
        found.append(AerieError(
            f"{where}/.aerie", seen="another file system than its target's", expected="the same one: parts are renamed",
            remedy="Unmount it, or remove the link.",
        ))  # fmt: skip
    found += _room(where, seen)
    if seen.missing_tools:
        found.append(AerieError(
            "tools", seen=f"no {', '.join(seen.missing_tools)}", expected="the programs that fetch",
            remedy="Provision the layer weights: ./invoke provision --host HOST.",
        ))  # fmt: skip
    if _is_refused(seen.asked) and not {one.file.path for one in survey.to_fetch} <= seen.at_peers:
        found.append(AerieError(
            f"source of {spec.model}", seen="; ".join(f"{one.name}: {one.path}: {one.answer}" for one in seen.asked),
            expected="a source that gives the files",
            remedy="Check the token, the licence gate, and the source's address and revision in the lock.",
        ))  # fmt: skip
    return tuple(found)


def to_dict(seen: Preflight) -> dict[str, Any]:
    """The plain values of a plan."""
    document = asdict(seen)
    del document["token_faults"], document["at_peers"]
    document["folder"] = str(seen.folder)
    document["partials"] = [{**asdict(one), "path": str(one.path)} for one in seen.partials]
    return document


def _room(where: str, seen: Preflight) -> list[AerieError]:
    limits = [("file system", seen.free_bytes, seen.free_inodes)]
    limits += [(f"quota of this {one.of}", one.bytes_left, one.inodes_left) for one in seen.quotas]  # type: ignore[misc]
    found = []
    for name, room, inodes in limits:
        for have, needed, unit in ((room, seen.needed_bytes, "bytes"), (inodes, seen.needed_inodes, "inodes")):
            if have is not None and have < needed:
                stale = sum(one.bytes for one in seen.partials if not one.is_open)
                hint = f" or sweep {stale} bytes of stale partial files (--sweep-partials)" if stale else ""
                found.append(AerieError(
                    f"{where}: {name}", seen=f"{have} {unit} free", expected=f"{needed} {unit}, margin included",
                    remedy=f"Make room{hint}, or name another weights_path.",
                ))  # fmt: skip
    return found


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _is_one(target: Target) -> bool:
    folders = [folder for folder in (target.path, target.own, target.parts) if folder.exists()]
    return len({os.stat(folder).st_dev for folder in folders}) <= 1


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def _token_fault(origin: Origin) -> AerieError | None:
    remedy = "Put the token there as root with mode 0600, or take token_file out."
    try:
        mode = os.stat(origin.token_file).st_mode
        token = address.read_token(origin.token_file)
    except (OSError, ValueError) as error:
        seen = error.strerror if isinstance(error, OSError) else "not ASCII"
        return AerieError(origin.token_file, seen=seen, expected="a file with the token", remedy=remedy)
    if stat.S_IMODE(mode) & 0o077:
        seen = f"mode {stat.S_IMODE(mode):04o}"
        return AerieError(origin.token_file, seen=seen, expected="mode 0600: it holds a secret", remedy=remedy)
    if not token or not token.isprintable() or " " in token:
        seen = "empty or with blanks" if not token else "blanks or control characters"
        return AerieError(origin.token_file, seen=seen, expected="one token", remedy=remedy)
    return None


def _ask_all(spec: Spec, file: File) -> tuple[Asked, ...]:
    if not spec.sources:
        return ()
    with ThreadPoolExecutor(len(spec.sources)) as pool:
        return tuple(pool.map(lambda origin: _ask(origin, file), spec.sources))


def _is_refused(asked: tuple[Asked, ...]) -> bool:
    return bool(asked) and all(one.status in _FOR_GOOD for one in asked)


def _at_peers(spec: Spec) -> frozenset[str]:
    """What any peer has verified."""
    if not spec.peers:
        return frozenset()
    sha256 = spec.manifest_sha256
    with ThreadPoolExecutor(len(spec.peers)) as pool:
        return frozenset().union(
            *pool.map(lambda one: peers.ask(one.url, spec.manifest, sha256).have, spec.peers)
        )  # fmt: skip


def _ask(origin: Origin, file: File) -> Asked:
    began = time.monotonic()
    answer, status = "ok", 0
    try:
        if origin.kind in ("hub", "http"):
            url = address.file_url(origin.url, file.path)
            address.ask(url, address.read_token(origin.token_file), file)
        elif origin.kind == "folder":
            if os.stat(origin.url + file.path).st_size != file.size:
                answer, status = "another file lies there", 409
        else:
            answer = _ask_rsync(origin.url + file.path)
    except address.Refused as refused:
        answer, status = refused.reason, refused.status
    except OSError as error:
        answer, status = error.strerror or str(error), 404
    return Asked(
        name=origin.kind, kind=origin.kind, url=origin.url, path=file.path,
        answer=answer, status=status, seconds=round(time.monotonic() - began, 3),
    )  # fmt: skip


def _ask_rsync(url: str) -> str:
    argv, environment = ["rsync", "--list-only", "--", url], os.environ | backends.RSYNC
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=_RSYNC_S, env=environment
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "ok" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["rsync failed"])[-1]


def _missing_tools(spec: Spec, usable: tuple[str, ...]) -> tuple[str, ...]:
    kinds = {one.kind for one in spec.sources if spec.may_use_origin}
    missing = []
    if not shutil.which("setpriv"):
        missing.append("setpriv")
    if "aria2" not in usable and ("http" in kinds or spec.peers or ("hub" in kinds and "hub" not in usable)):
        missing.append("aria2c")
    if "rsync" in kinds and not shutil.which("rsync"):
        missing.append("rsync")
    return tuple(missing)


def _aria2_version() -> str:
    with suppress(OSError, subprocess.TimeoutExpired, IndexError):
        done = subprocess.run(["aria2c", "--version"], check=False, capture_output=True, text=True, timeout=10)
        return done.stdout.split()[2]
    return ""
