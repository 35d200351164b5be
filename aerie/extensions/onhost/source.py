"""The source of a build: an archive by its hash, unpacked, patches applied to exactly the lines they were made for."""

import hashlib
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from aerie.errors import AerieError
from aerie.extensions.onhost.request import Patch, Source

__all__ = ["apply", "unpack"]

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def unpack(source: Source, folder: Path) -> Path:
    """The package's folder in the archive, unpacked below `folder`: its top, or the folder there that is named.

    Raises AerieError, and unpacks nothing, for a file of another hash; and for one without that folder.
    """
    try:
        with open(source.path, "rb") as file:
            seen = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AerieError(
            str(source.path), seen=error.strerror, expected="the source archive", remedy="Fetch it again."
        ) from error
    if seen != source.sha256:
        raise AerieError(
            str(source.path), seen=f"sha256 {seen}", expected=source.sha256,
            remedy="Fetch the source again; where it stays so, it is another one than was locked: find out why.",
        )  # fmt: skip
    folder.mkdir(parents=True)
    if zipfile.is_zipfile(source.path):
        with zipfile.ZipFile(source.path) as archive:
            archive.extractall(folder)
    else:
        with tarfile.open(source.path) as tar:
            # The filter came with security updates of each Python; a host may lack it, and the hash is known here.
            tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    tops = sorted(folder.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise AerieError(
            str(source.path), seen=f"{', '.join(top.name for top in tops[:5]) or 'nothing'} at the top",
            expected="one folder", remedy="Lock a source distribution.",
        )  # fmt: skip
    package = tops[0] / source.folder
    # A link may lead anywhere: what the lock names lies in the archive that its hash is of.
    if not package.is_dir() or not package.resolve().is_relative_to(tops[0].resolve()):
        there = ", ".join(sorted(one.parent.relative_to(tops[0]).as_posix() for one in _packages(tops[0]))[:5])
        raise AerieError(
            str(source.path), seen=f"no folder {source.folder} in {tops[0].name}, packages in: {there or 'none'}",
            expected="the folder with the package", remedy="Lock the source's folder as the archive has it.",
        )  # fmt: skip
    return package


def _packages(top: Path) -> Iterator[Path]:
    return (path for pattern in ("*/", "*/*/") for path in top.glob(f"{pattern}pyproject.toml"))


def apply(patch: Patch, folder: Path) -> tuple[str, ...]:
    """Apply a unified diff below the folder; the files that it changed.

    Every line it names must stand where it says, or AerieError tells the first that does not: a patch that nearly
    fits was made for another source. Files are changed, or made where none of the name is ("--- /dev/null").
    """
    changed = {}
    for name, is_new, hunks in _files(patch):
        file = folder / name
        if ".." in Path(name).parts or not (is_new or file.is_file()):
            _no(patch, f"no file {name} in the source", "the file that it changes")
        if is_new and file.exists():
            _no(patch, f"{name} in the source already", "no such file, for it makes one")
        # Kept byte for byte: another line end would be another file.
        text = "" if is_new else file.read_bytes().decode("utf-8", "surrogateescape")
        lines = text.splitlines(keepends=True)
        changed[file] = "".join(_changed(patch, name, lines, hunks))
    for file, text in changed.items():
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    return tuple(str(file.relative_to(folder)) for file in changed)


def _files(patch: Patch) -> Iterator[tuple[str, bool, list[tuple[int, list[str]]]]]:
    """(path, is it a new file, hunks as (first line, from 1; its lines)) for each file."""
    name, is_new, hunks = "", False, list[tuple[int, list[str]]]()
    rows = patch.text.splitlines(keepends=True)
    for number, row in enumerate(rows):
        if row.startswith("--- ") and number + 1 < len(rows) and rows[number + 1].startswith("+++ "):
            if name:
                yield name, is_new, hunks
            old, new = (one[4:].split("\t")[0].strip() for one in (row, rows[number + 1]))
            is_new = old == "/dev/null"
            name, hunks = (new if is_new else old).partition("/")[2], []
        elif match := _HUNK.match(row):
            hunks.append((int(match[1]), []))
        elif hunks and row[:1] in (" ", "+", "-") and not row.startswith("+++ "):
            hunks[-1][1].append(row)
    if not name or not hunks:
        _no(patch, "no changes", "a unified diff with --- a/FILE, +++ b/FILE and @@ lines")
    yield name, is_new, hunks


def _changed(patch: Patch, name: str, lines: list[str], hunks: list[tuple[int, list[str]]]) -> Iterator[str]:
    position = 0
    for first, rows in hunks:
        yield from lines[position : first - 1]
        position = first - 1
        for row in rows:
            if row[0] == "+":
                yield row[1:]
                continue
            seen = lines[position] if position < len(lines) else "the file's end"
            if seen != row[1:]:
                _no(patch, f"{name}:{position + 1}: {seen.strip()[:120]}", row[1:].strip()[:120])
            if row[0] == " ":
                yield seen
            position += 1
    yield from lines[position:]


def _no(patch: Patch, seen: str, expected: str) -> NoReturn:
    raise AerieError(
        f"patch {patch.name}", seen=seen, expected=expected,
        remedy="It does not apply to this source any more: make it anew for this version and review it.",
    )  # fmt: skip
