"""What one host is to stage, as its controller wrote it: the document aerie.staging/1."""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, get_args, get_origin

from aerie.errors import UsageError
from aerie.weights import manifest as manifests
from aerie.weights.manifest import Manifest
from aerie.weights.onhost.warm import Mode

__all__ = ["SCHEMA", "Origin", "Peer", "Spec", "parse", "read"]

SCHEMA: Final = "aerie.staging/1"
_CHOICES: Final = {
    "kind": ("hub", "http", "folder", "rsync"),
    "warm": get_args(Mode),
    "backends": ("aria2", "hub"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the files come from in the end. url + a file's path is where that file is.

    kind: hub and http are asked by HTTP (a hub's url ends with "/<repository>/resolve/<revision>/"), folder is one on
    this host, rsync is "user@host:/folder/" or "rsync://…/". token_file: a file of mode 0600 with the token, or "".
    """

    kind: str
    url: str
    token_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another host that stages the same manifest. url: of its target, where .aerie/verified.json says what it has."""

    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One staging. position: of this host among all (itself and its peers), from 0.

    stall_s: a transfer without a new byte for so long is killed. tries: failures of one file in a row, without a new
    byte, after which it is given up; backoff_s: the pause after the first of them, doubled up to a minute.
    idle_s: how long a file may be on no source at all before it is given up. records: the folder that names the
    staged models of this host.
    """

    model: str
    target: Path
    manifest: Manifest
    sources: tuple[Origin, ...]
    peers: tuple[Peer, ...] = ()
    position: int = 0
    may_use_origin: bool = True
    parallel: int = 16
    warm: Mode = "auto"
    stall_s: float = 60.0
    backends: tuple[str, ...] = ("aria2", "hub")
    margin: float = 0.05
    sweep_partials: bool = False
    deep: bool = False
    tries: int = 12
    backoff_s: float = 1.0
    idle_s: float = 600.0
    hub_python: Path = Path("/opt/aerie/environments/hub/bin/python")
    records: Path = Path("/var/lib/aerie/weights")

    @property
    def manifest_sha256(self) -> str:
        """Names the manifest, as locks and receipts do."""
        return manifests.digest(self.manifest)


def read(path: Path) -> Spec:
    """The staging that a file describes. Raises UsageError for a file that cannot be read or is none."""
    try:
        text = path.read_bytes()
    except OSError as error:
        _wrong("file", f"{path}: {error.strerror}", "a staging")
    return parse(text)


def parse(text: str | bytes) -> Spec:
    """The staging of a document. Raises UsageError with the value that is wrong, AerieError for a wrong manifest."""
    try:
        document = json.loads(text)
    except ValueError as error:
        _wrong("document", str(error), "JSON")
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        _wrong("schema", text[:80], SCHEMA)
    document["manifest"] = manifests.parse(json.dumps(document.get("manifest")))
    for key, kind in (("sources", Origin), ("peers", Peer)):
        rows = document.get(key, [])
        if not isinstance(rows, list):
            _wrong(key, rows, "a list")
        document[key] = tuple(_record(kind, row, f"{key}[{index}]") for index, row in enumerate(rows))
    spec: Spec = _record(Spec, document, "document")
    _check(spec)
    return spec


def _record(kind: type, row: object, where: str) -> Any:
    if not isinstance(row, dict):
        _wrong(where, row, "a table")
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(row.keys() - known.keys()):
        _wrong(where, unknown, f"only {', '.join(known)}")
    required = {name for name, field in known.items() if field.default is MISSING}
    if missing := sorted(required - row.keys()):
        _wrong(where, sorted(row), f"{', '.join(missing)} too")
    return kind(**{key: _value(known[key].type, value, f"{where}.{key}") for key, value in row.items()})


def _value(kind: Any, value: object, where: str) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    expected = {tuple: tuple, Literal: str}.get(get_origin(kind), kind)
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool):
        _wrong(where, value, f"a value of type {getattr(expected, '__name__', expected)}")
    return value


def _check(spec: Spec) -> None:
    if spec.model != spec.manifest.model:
        _wrong("model", spec.model, f"the manifest's, {spec.manifest.model}")
    for name, path in (("target", spec.target), ("records", spec.records)):
        if not path.is_absolute():
            _wrong(name, str(path), "an absolute path")
    chosen = [("warm", spec.warm), *(("backends", one) for one in spec.backends)]
    for key, value in [*chosen, *(("kind", one.kind) for one in spec.sources)]:
        if value not in _CHOICES[key]:
            _wrong(key, value, f"one of {', '.join(_CHOICES[key])}")
    for address in (*(one.url for one in spec.sources), *(one.url for one in spec.peers)):
        if not address.endswith("/") or not address.isprintable() or " " in address:
            _wrong("url", address, 'an address that ends with "/" and has neither blanks nor control characters')
    for name, number, least in (
        ("parallel", spec.parallel, 1), ("tries", spec.tries, 1), ("position", spec.position, 0),
        ("stall_s", spec.stall_s, 0.1), ("backoff_s", spec.backoff_s, 0), ("idle_s", spec.idle_s, 0),
        ("margin", spec.margin, 0),
    ):  # fmt: skip
        if not number >= least:
            _wrong(name, number, f"{least} or more")
    names = [peer.name for peer in spec.peers]
    if len(set(names)) < len(names):
        _wrong("peers", names, "each name once")


def _wrong(where: str, seen: object, expected: str) -> NoReturn:
    remedy = "Stage with ./invoke stage, which writes this document."
    raise UsageError(f"staging: {where}", seen=seen, expected=expected, remedy=remedy)
