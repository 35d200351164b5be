"""Models of a lock as a plan sees them: their size by the manifest, and what lies of them on this host."""

from functools import cache
from pathlib import Path

from aerie.eagle3.profile import Staged
from aerie.errors import AerieError

__all__ = ["bytes_in", "files", "no_manifest"]


def files(chosen: Staged | None, stated: int) -> tuple[int, str, str]:
    """(Bytes of a model's files, where that comes from, their folder): the manifest's, or what the profile states."""
    if chosen is None:
        return stated, "the profile's figure", ""
    weights, pinned = _pinned(chosen)
    if isinstance(pinned, str):
        return stated, "the profile's figure: no manifest is pinned", weights
    return pinned, "the lock's manifest", weights


@cache
def _pinned(chosen: Staged) -> tuple[str, int | str]:
    """(Folder, bytes) of a lock's model; instead of its bytes why there is no manifest."""
    from aerie import lock as locks
    from aerie.weights import document, manifest, models

    inventory = Path(chosen.inventory) if chosen.inventory else None
    lock = locks.load(chosen.lock, inventory)
    try:
        found = models.load(lock, chosen.model, inventory)
    except AerieError as error:
        return lock.weights.path, str(error)
    return document.target(lock.weights.path, chosen.model, manifest.digest(found)), found.size_bytes


def bytes_in(folder: str) -> int:
    """Of the files that lie in the folder of a staged model; 0 for a folder of many models or none."""
    if "@" not in Path(folder).name:
        return 0
    return sum(file.stat().st_size for file in Path(folder).glob("*") if file.is_file())


def no_manifest(chosen: Staged | None) -> str:
    """Why nobody can say which files the model has, "" where its lock pins them, and for none."""
    pinned = _pinned(chosen)[1] if chosen else 0
    return pinned if isinstance(pinned, str) else ""
