"""What of a model is on this host, from names and stamps alone: no content is read."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aerie.weights.manifest import File, Manifest
from aerie.weights.onhost.target import Stamp, Target

__all__ = ["State", "Survey", "Surveyed", "survey"]


class State(StrEnum):
    """Of one file."""

    VERIFIED = "verified"  # its stamp holds
    UNVERIFIED = "unverified"  # of the right size; never hashed, or written to since: to be hashed
    WRONG_SIZE = "wrong-size"  # of its name, but it cannot be the file
    PARTIAL = "partial"  # begun
    MISSING = "missing"
    OBSTACLE = "obstacle"  # a link, a folder or the like lies where the file or its folder should be


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One file. bytes: of its content that are there, whole or partial; allocated: what it takes on the disk so far."""

    file: File
    state: State
    bytes: int = 0
    allocated: int = 0

    @property
    def is_present(self) -> bool:
        """There is nothing to fetch."""
        return self.state in (State.VERIFIED, State.UNVERIFIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All files of a manifest, in its order."""

    files: tuple[Surveyed, ...]

    def of(self, *states: State) -> tuple[Surveyed, ...]:
        """The files in one of these states."""
        return tuple(one for one in self.files if one.state in states)

    @property
    def is_verified(self) -> bool:
        """Every file is there with a stamp that holds."""
        return all(one.state is State.VERIFIED for one in self.files)

    @property
    def to_fetch(self) -> tuple[Surveyed, ...]:
        """What is not there whole."""
        return tuple(one for one in self.files if not one.is_present)

    @property
    def needed_bytes(self) -> int:
        """What the file system must still take for the files to fetch."""
        return sum(max(0, one.file.size - one.allocated) for one in self.to_fetch)


def survey(target: Target, manifest: Manifest, stamps: Mapping[str, Stamp]) -> Survey:
    """Look at every file of the manifest: one or two stat calls each."""
    folders: dict[str, bool] = {}
    return Survey(files=tuple(_look(target, file, stamps.get(file.path), folders) for file in manifest.files))


def _look(target: Target, file: File, stamp: Stamp | None, folders: dict[str, bool]) -> Surveyed:
    folder = file.path.rpartition("/")[0]
    if folder not in folders:
        folders[folder] = _is_own(target, folder)
    if not folders[folder]:
        return Surveyed(file=file, state=State.OBSTACLE)
    seen = _stat(target.file(file.path))
    if seen is not None:
        if not stat.S_ISREG(seen.st_mode):
            return Surveyed(file=file, state=State.OBSTACLE)
        if stamp is not None and stamp.holds(file, seen):
            return Surveyed(file=file, state=State.VERIFIED, bytes=file.size)
        if seen.st_size == file.size:
            return Surveyed(file=file, state=State.UNVERIFIED, bytes=file.size)
    part = _stat(target.part(file.path))
    if part is not None and stat.S_ISREG(part.st_mode) and part.st_size <= file.size:
        allocated = min(file.size, part.st_blocks * 512)
        return Surveyed(file=file, state=State.PARTIAL, bytes=part.st_size, allocated=allocated)
    return Surveyed(file=file, state=State.MISSING if seen is None else State.WRONG_SIZE)


def _is_own(target: Target, folder: str) -> bool:
    """The folder is a real one all the way below the target, or is not there yet: a link could lead out of it."""
    path = target.path
    for name in filter(None, folder.split("/")):
        path = path / name
        if (seen := _stat(path)) is None:
            return True
        if not stat.S_ISDIR(seen.st_mode):
            return False
    return True


def _stat(path: os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
