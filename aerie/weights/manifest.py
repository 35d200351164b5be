"""A manifest: every file of a model with its size and hash. Standard library only, for hosts have it too.

The canonical text is the file itself: `sha256sum <model>.manifest.json` gives what the lock pins.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from aerie.errors import AerieError

__all__ = ["SCHEMA", "SUFFIX", "File", "Manifest", "Source", "digest", "dump", "hasher", "parse", "to_dict"]

SCHEMA: Final = "aerie.manifest/1"
SUFFIX: Final = ".manifest.json"
KINDS: Final = ("hub", "http", "s3", "folder")
RESERVED: Final = ".aerie"  # stamps, parts and receipt lie beside the files
# ext4 and xfs take 255 bytes; a file in the making is called a little longer.
PART_BYTES: Final = 240
SIZE_LIMIT: Final = 1 << 60

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the files come from. kind: hub, http, s3 or folder; revision: 40 hex digits of a hub, "" of others.

    location: "organization/name" of a hub, else an address or a folder. Raises AerieError for what cannot be.
    """

    kind: str
    location: str
    revision: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            _wrong("source.kind", self.kind, f"one of {', '.join(KINDS)}")
        if not isinstance(self.location, str) or not self.location or _CONTROL.search(self.location):
            _wrong("source.location", self.location, "where the files come from")
        if not isinstance(self.revision, str) or not (_SHA1.fullmatch(self.revision) or self.revision == ""):
            # A branch or a tag moves; a commit does not.
            _wrong("source.revision", self.revision, 'a commit, 40 hexadecimal digits, or "" where there are none')
        if (self.kind == "hub") != bool(self.revision):
            _wrong("source.revision", self.revision, "the commit of a hub's repository" if self.kind == "hub" else '""')


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file. path: relative, with "/"; size in bytes; exactly one hash: sha256, or git_sha1 of git's blob.

    Raises AerieError for a path that could leave the target's folder or lie where aerie keeps its own.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    def __post_init__(self) -> None:
        _check_path(self.path)
        if type(self.size) is not int or not 0 <= self.size < SIZE_LIMIT:
            _wrong(f"{self.path}: size", self.size, "bytes, 0 or more")
        if (self.sha256 is None) == (self.git_sha1 is None):
            seen = {"sha256": self.sha256, "git_sha1": self.git_sha1}
            _wrong(f"{self.path}: hash", seen, "exactly one of sha256 and git_sha1")
        name, form = ("sha256", _SHA256) if self.sha256 is not None else ("git_sha1", _SHA1)
        if not isinstance(self.hash, str) or not form.fullmatch(self.hash):
            _wrong(f"{self.path}: {name}", self.hash, f"{64 if name == 'sha256' else 40} lower-case hexadecimal digits")

    @property
    def hash(self) -> str:
        """Of its kind, in hexadecimal digits."""
        return self.sha256 if self.sha256 is not None else self.git_sha1 or ""

    @property
    def hash_kind(self) -> str:
        """sha256 or git_sha1."""
        return "sha256" if self.sha256 is not None else "git_sha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of a model, sorted by path whatever order they were given in.

    Raises AerieError for a name that is no folder's, no file at all, a path twice, or a file where another has its
    folder.
    """

    model: str
    source: Source
    files: tuple[File, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not _NAME.fullmatch(self.model):
            _wrong("model", self.model, "a name of lower-case letters, digits, '.', '_' and '-'")
        if not self.files:
            _wrong("files", [], "at least one file")
        object.__setattr__(self, "files", tuple(sorted(self.files, key=lambda file: file.path)))
        paths: set[str] = set()
        for file in self.files:
            if file.path in paths:
                _wrong("files", file.path, "each path once")
            paths.add(file.path)
        for path in sorted(paths):
            parts = path.split("/")
            for end in range(1, len(parts)):
                if (folder := "/".join(parts[:end])) in paths:
                    _wrong("files", f"{folder} and {path}", "a file or a folder of that name, not both")

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)


def parse(text: str | bytes) -> Manifest:
    """The manifest of a document. Raises AerieError with the value that is wrong: it may come from anywhere."""
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        _wrong("document", str(error), "JSON with each key once")
    table = _table("document", document, ("schema", "model", "source", "files"))
    if table["schema"] != SCHEMA:
        _wrong("schema", table["schema"], SCHEMA)
    if not isinstance(table["files"], list):
        _wrong("files", table["files"], "a list of files")
    source = _table("source", table["source"], ("kind", "location", "revision"))
    files = tuple(_file(index, row) for index, row in enumerate(table["files"]))
    return Manifest(model=table["model"], source=Source(**source), files=files)


def dump(manifest: Manifest) -> bytes:
    """The canonical document: one text for one manifest, a line for each file, so that a change reads well."""
    document = to_dict(manifest)
    files = ",\n".join(_line(row) for row in document.pop("files"))
    head = "".join(f"{json.dumps(key)}: {_line(value)},\n" for key, value in document.items())
    return f'{{{head}"files": [\n{files}\n]}}\n'.encode("ascii")


def digest(manifest: Manifest) -> str:
    """The sha256 of the canonical document, which locks and receipts name."""
    return hashlib.sha256(dump(manifest)).hexdigest()


def to_dict(manifest: Manifest) -> dict[str, Any]:
    """The document as plain values, which `parse` reads back."""
    source = manifest.source
    return {
        "schema": SCHEMA,
        "model": manifest.model,
        "source": {"kind": source.kind, "location": source.location, "revision": source.revision},
        "files": [{"path": file.path, "size": file.size, file.hash_kind: file.hash} for file in manifest.files],
    }


def hasher(file: File) -> "hashlib._Hash":
    """A fresh hash of the file's kind: feed it the content, and hexdigest() must be `file.hash`."""
    if file.sha256 is not None:
        return hashlib.sha256()
    # git hashes a header with the size before the content.
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _line(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "))


def _file(index: int, row: object) -> File:
    table = _table(f"files[{index}]", row, ("path", "size"), ("sha256", "git_sha1"))
    return File(**table)


def _table(where: str, value: object, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        _wrong(where, value, f"a table with {', '.join(required)}")
    if missing := [key for key in required if key not in value]:
        _wrong(where, sorted(value), f"{', '.join(missing)} too")
    if unknown := [key for key in value if key not in (*required, *optional)]:
        _wrong(where, unknown, f"only {', '.join((*required, *optional))}")
    return dict(value)


def _check_path(path: object) -> None:
    if not isinstance(path, str) or not path:
        _wrong("path", path, "a relative path")
    reasons: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("a path relative to the model's folder", lambda one: one.startswith("/")),
        ("no backslash and no control character", lambda one: "\\" in one or _CONTROL.search(one)),
        ("no empty part, '.' or '..'", lambda one: {"", ".", ".."}.intersection(one.split("/"))),
        (f"not in {RESERVED}, which is aerie's", lambda one: one.startswith(RESERVED)),
        ("text that UTF-8 can hold", lambda one: any("\ud800" <= letter <= "\udfff" for letter in one)),
        (f"parts of at most {PART_BYTES} bytes", lambda one: max(map(len, one.encode().split(b"/"))) > PART_BYTES),
    )
    for expected, refused in reasons:
        if refused(path):
            _wrong("path", path, expected)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _wrong(where: str, seen: object, expected: str) -> NoReturn:
    text = str(seen)
    shown = seen if len(text) <= 200 else text[:200] + "…"
    remedy = "Make the manifest anew from its source: ./invoke weights.manifest."
    raise AerieError(f"manifest: {where}", seen=shown, expected=expected, remedy=remedy)
