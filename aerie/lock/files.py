"""Reading inventory/locks/<name>.lock.toml."""

from pathlib import Path

from aerie.errors import UsageError
from aerie.paths import repository, shown
from aerie.runbook.yamlfile import Document, SpecError, nearest, validate
from aerie.tomlfile import parse

from .model import Lock

__all__ = ["load", "names", "path"]

SUFFIX = ".lock.toml"


def load(name: str, folder: Path | None = None) -> Lock:
    """The lock of that name. folder: of the inventory, whose locks/ is looked into before the repository's.

    Raises UsageError for an unknown name, and SpecError with everything that is wrong in the file.
    """
    file = path(name, folder)
    document = parse(file, shown(file))
    lock = validate(Lock, document)
    if lock is not None:
        _check(lock, name, document)
    if lock is None or document.problems:
        raise SpecError(document.problems)
    return lock


def path(name: str, folder: Path | None = None) -> Path:
    """The file of the lock of that name. Raises UsageError that names the nearest known one."""
    known = names(folder)
    if name in known:  # so that "../x" is no lock
        return next(file for locks in _folders(folder) if (file := locks / f"{name}{SUFFIX}").is_file())
    raise UsageError(
        "lock",
        seen=name,
        expected=f"one of {', '.join(known) or 'none: there is no lock'}",
        remedy=nearest(name, known) or f"Write {shown(_folders(folder)[0] / (name + SUFFIX))}.",
    )


def names(folder: Path | None = None) -> list[str]:
    """The names of all locks that `load` would find."""
    files = [file for locks in _folders(folder) for file in locks.glob(f"*{SUFFIX}")]
    return sorted({file.name.removesuffix(SUFFIX) for file in files})


def _folders(folder: Path | None) -> list[Path]:
    shipped = repository() / "inventory" / "locks"
    return [shipped] if folder is None else [folder / "locks", shipped]


def _check(lock: Lock, name: str, document: Document) -> None:
    if lock.name != name:
        document.problem(("name",), repr(lock.name), f"{name!r}, as the file is called")
