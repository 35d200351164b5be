"""What the hub holds, on disk: a folder for each revision of each repository, and an index with sizes and hashes.

<folder>/repositories/<organization>/<name>/index.json
<folder>/repositories/<organization>/<name>/<revision>/<path>
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from aerie.runbook.step import write_atomic

__all__ = ["Access", "Entry", "Repository", "add", "file_of", "read", "repositories"]

Access = Literal["public", "gated", "private"]
# What hubs keep in large-file storage, with its sha256 in the listing; other files have git's hash alone.
LARGE = (".safetensors", ".bin", ".gguf", ".pt", ".model")
BUFFER = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file. git_sha1: of the blob that git holds, which is a pointer where sha256 is not None."""

    size: int
    git_sha1: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """gated: everybody sees the listing, and members alone get files; private: strangers see nothing."""

    name: str
    access: Access
    head: str
    revisions: Mapping[str, Mapping[str, Entry]]


def add(folder: Path, name: str, files: Path | Mapping[str, bytes], access: Access = "public") -> str:
    """Make these files the head of the repository "organization/name"; its revision, 40 hexadecimal digits.

    files: a folder (its files are linked where they can be) or the contents by path. The revision follows from name
    and contents, so the same ones give the same. Earlier revisions stay.
    """
    place = folder / "repositories" / name
    raw = place / "new"
    shutil.rmtree(raw, ignore_errors=True)
    if isinstance(files, Path):
        shutil.copytree(files, raw, copy_function=_link)
    else:
        for path, content in files.items():
            (raw / path).parent.mkdir(parents=True, exist_ok=True)
            (raw / path).write_bytes(content)
    entries = {file.relative_to(raw).as_posix(): _entry(file) for file in sorted(raw.rglob("*")) if file.is_file()}
    listing = json.dumps({path: asdict(entry) for path, entry in entries.items()}, sort_keys=True)
    revision = hashlib.sha1(f"{name}\n{listing}".encode(), usedforsecurity=False).hexdigest()
    shutil.rmtree(place / revision, ignore_errors=True)
    raw.rename(place / revision)
    known = read(folder, name)
    revisions = {**(known.revisions if known else {}), revision: entries}
    document = asdict(Repository(name=name, access=access, head=revision, revisions=revisions))
    write_atomic(place / "index.json", json.dumps(document).encode(), durable=False)
    return revision


def read(folder: Path, name: str) -> Repository | None:
    """The repository of that name, or None."""
    try:
        document = json.loads((folder / "repositories" / name / "index.json").read_bytes())
    except (OSError, ValueError):
        return None
    revisions = {
        revision: {path: Entry(**entry) for path, entry in entries.items()}
        for revision, entries in document.pop("revisions").items()
    }
    return Repository(revisions=revisions, **document)


def repositories(folder: Path) -> list[str]:
    """The names of all repositories."""
    indexes = sorted((folder / "repositories").glob("*/*/index.json"))
    return [index.parent.relative_to(folder / "repositories").as_posix() for index in indexes]


def file_of(folder: Path, name: str, revision: str, path: str) -> Path:
    """Where the content of a file of the index lies."""
    return folder / "repositories" / name / revision / path


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _entry(file: Path) -> Entry:
    size = file.stat().st_size
    git, sha256 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), hashlib.sha256()
    with open(file, "rb") as content:
        while piece := content.read(BUFFER):
            git.update(piece)
            sha256.update(piece)
    if not file.name.endswith(LARGE):
        return Entry(size=size, git_sha1=git.hexdigest(), sha256=None)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256.hexdigest()}\nsize {size}\n".encode()
    blob = b"blob %d\0" % len(pointer) + pointer
    git_sha1 = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    return Entry(size=size, git_sha1=git_sha1, sha256=sha256.hexdigest())
