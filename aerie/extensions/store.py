"""Wheels by what they were made from: a folder on the controller and on every host. Standard library only.

    <store>/<digest>/receipt.json      who made it, from what, and what is in it: an in-toto statement
    <store>/<digest>/<name>.whl

digest: of the build's key for a wheel that was built, the wheel's own sha256 for one that was fetched. An entry is
whole or not there: it is made under another name first. What was damaged since is refused, and made anew.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.extensions import contents
from aerie.extensions.contents import Contents
from aerie.runbook.step import write_atomic
from aerie.statement import dump

__all__ = ["RECEIPT", "Damaged", "Entry", "add", "entries", "find", "of_statement", "set_aside", "sha256_of"]

RECEIPT: Final = "receipt.json"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A wheel of the store, as its receipt tells. key: of its build, None for one that was fetched."""

    digest: str
    wheel: Path
    sha256: str
    size_bytes: int
    package: str
    version: str
    key: Mapping[str, Any] | None
    contents: Contents
    statement: Mapping[str, Any]

    def check(self) -> None:
        """Read the wheel to its end. Raises Damaged where it is not the one that the receipt is about."""
        if (seen := sha256_of(self.wheel)) != self.sha256:
            raise Damaged(self.wheel, seen=f"sha256 {seen}", expected=self.sha256)

    def to_dict(self) -> dict[str, Any]:
        """As a host tells of it."""
        return {"digest": self.digest, "wheel": self.wheel.name, "statement": dict(self.statement)}


class Damaged(AerieError):
    """An entry of the store that is not what was put there."""

    def __init__(self, path: Path, *, seen: object, expected: str) -> None:
        remedy = "Nothing is installed from it; ./invoke build fetches or builds it anew."
        super().__init__(str(path), seen=seen, expected=expected, remedy=remedy)


def find(store: Path, digest: str) -> Entry | None:
    """The entry, by its receipt and the size of its wheel; None where there is none. Raises Damaged."""
    folder = store / digest
    if not folder.is_dir():
        return None
    try:
        statement = json.loads((folder / RECEIPT).read_bytes())
        entry = of_statement(folder, statement)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise Damaged(folder / RECEIPT, seen=f"{type(error).__name__}: {error}", expected="a receipt") from error
    size = entry.wheel.stat().st_size if entry.wheel.is_file() else -1
    if size != entry.size_bytes:
        seen = f"{size} bytes" if size >= 0 else "no such file"
        raise Damaged(entry.wheel, seen=seen, expected=f"{entry.size_bytes} bytes")
    return entry


def of_statement(folder: Path, statement: Mapping[str, Any]) -> Entry:
    """The entry that a receipt is about. Raises ValueError, KeyError, TypeError or IndexError for what is none."""
    (subject,) = statement["subject"]
    told = statement["predicate"]
    name = str(subject["name"])
    if "/" in name or not name.endswith(".whl"):
        raise ValueError(f"{name!r} is no name of a wheel")
    return Entry(
        digest=folder.name,
        wheel=folder / name,
        sha256=str(subject["digest"]["sha256"]),
        size_bytes=int(told["size_bytes"]),
        package=str(told["package"]),
        version=str(told["version"]),
        key=told["key"],
        contents=contents.parse(told["contents"]),
        statement=statement,
    )


def entries(store: Path) -> tuple[Entry | Damaged, ...]:
    """Every entry, and of each that is damaged why, by digest."""
    found: list[Entry | Damaged] = []
    for folder in sorted(store.iterdir()) if store.is_dir() else ():
        if folder.name.startswith("."):
            continue
        try:
            entry = find(store, folder.name)
        except Damaged as error:
            found.append(error)
        else:
            found += [entry] if entry else []
    return tuple(found)


def add(store: Path, digest: str, wheel: Path, statement: Mapping[str, Any]) -> Entry:
    """Put a wheel there, which is copied; an entry that is there already and good is kept, a damaged one replaced.

    Raises Damaged where the wheel is not the one of the statement.
    """
    store.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    try:
        copy = made / wheel.name
        shutil.copyfile(wheel, copy)
        with open(copy, "rb+") as file:
            os.fsync(file.fileno())
        write_atomic(made / RECEIPT, dump(statement))
        of_statement(made, statement).check()
        made.chmod(0o755)
        if (kept := _good(store, digest)) is not None:
            return kept
        old = made.with_name(f"{made.name}.old")
        if (store / digest).exists():
            (store / digest).rename(old)
        made.rename(store / digest)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    entry = find(store, digest)
    assert entry is not None, f"{store / digest}: put there just now"
    return entry


def set_aside(store: Path, digest: str) -> None:
    """Take a damaged entry out of the store; it is kept under a name that nothing is installed from."""
    if (store / digest).exists():
        aside = Path(tempfile.mkdtemp(prefix=f".damaged-{digest[:12]}-", dir=store))
        (store / digest).rename(aside / digest)


def _good(store: Path, digest: str) -> Entry | None:
    try:
        entry = find(store, digest)
        if entry:
            entry.check()
    except Damaged:
        return None
    return entry


def sha256_of(path: Path) -> str:
    """Of a file, 64 hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_CHUNK):
            digest.update(part)
    return digest.hexdigest()
