"""Models of a lock and their manifests: inventory/manifests/<model>.manifest.json, fixed by the lock's digest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie import lock as locks
from aerie.choice import nearest
from aerie.errors import AerieError, UsageError
from aerie.lock import Lock, WeightsModel
from aerie.paths import repository, shown
from aerie.runbook.step import write_atomic

from .manifest import SUFFIX, Manifest, digest, dump, parse
from .sources import Say, read

__all__ = ["SCHEMA", "Made", "load", "make", "model_of", "write"]

SCHEMA = "aerie.weights-manifest/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A manifest made from its source. path: where `write` puts it; lock: the name of the lock that has the model."""

    manifest: Manifest
    path: Path
    lock: str

    @property
    def lock_lines(self) -> str:
        """What the lock's table of the model must say."""
        revision = self.manifest.source.revision
        pinned = f'revision = "{revision}"\n' if revision else ""
        return f'[weights.models."{self.manifest.model}"]\n{pinned}manifest_sha256 = "{digest(self.manifest)}"'

    def to_dict(self) -> dict[str, Any]:
        """The document of `weights.manifest --json`."""
        return {
            "schema": SCHEMA,
            "model": self.manifest.model,
            "lock": self.lock,
            "revision": self.manifest.source.revision,
            "manifest_sha256": digest(self.manifest),
            "path": str(self.path),
            "files": len(self.manifest.files),
            "size_bytes": self.manifest.size_bytes,
        }


def model_of(lock: Lock, name: str) -> WeightsModel:
    """The lock's table of the model. Raises UsageError that names the nearest known one."""
    known = lock.weights.models
    if name in known:
        return known[name]
    expected = f"one of {', '.join(known)}" if known else "a model in the lock's [weights.models], which has none"
    raise UsageError(f"model in lock {lock.name}", seen=name, expected=expected, remedy=nearest(name, known))


def load(lock: Lock, name: str, folder: Path | None = None) -> Manifest:
    """The committed manifest of a lock's model, which is what the lock's digest says.

    folder: of the inventory, whose manifests/ is looked into before the repository's. Raises UsageError for an unknown
    model, and AerieError where there is no manifest, or another one than the lock's.
    """
    model = model_of(lock, name)
    again = f"Run ./invoke weights.manifest --model {name} --lock {lock.name}."
    where = f"model {name} in lock {lock.name}"
    if not model.manifest_sha256:
        raise AerieError(where, seen="no manifest_sha256", expected="the digest of its manifest", remedy=again)
    file = _find(name, folder)
    if file is None:
        expected = f"{name}{SUFFIX} in {' or '.join(shown(one) for one in _folders(folder))}"
        raise AerieError(where, seen="no manifest", expected=expected, remedy=again)
    try:
        manifest = parse(file.read_bytes())
    except AerieError as error:
        at = f"{shown(file)}: {error.where}"
        raise AerieError(at, seen=error.seen, expected=error.expected, remedy=again) from error
    _check(manifest, name, model, where=f"{shown(file)}, {where}", remedy=again)
    return manifest


def make(name: str, lock: str = "", folder: Path | None = None, say: Say = lambda line: None) -> Made:
    """The manifest of a model as its source has it now; nothing is written.

    lock: its name; without one the model is looked for in all locks, which must agree on its source. Raises
    UsageError for an unknown model or lock, and AerieError as `sources.read` does, and where the lock pins another
    manifest: a manifest never changes under its digest.
    """
    owner = _owner(name, lock, folder)
    model = model_of(owner, name)
    manifest = read(name, model, endpoint=owner.weights.hub, say=say)
    if model.manifest_sha256 not in ("", digest(manifest)):
        raise _changed(owner, name, model, manifest, folder)
    return Made(manifest=manifest, path=_folders(folder)[0] / f"{name}{SUFFIX}", lock=owner.name)


def write(made: Made) -> None:
    """Put the manifest where `load` finds it."""
    made.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(made.path, dump(made.manifest))


def _owner(name: str, lock: str, folder: Path | None) -> Lock:
    if lock:
        return locks.load(lock, folder)
    having = [found for each in locks.names(folder) if name in (found := locks.load(each, folder)).weights.models]
    if not having:
        known = sorted({model for each in locks.names(folder) for model in locks.load(each, folder).weights.models})
        raise UsageError(
            "--model", seen=name, expected=f"a model of a lock: {', '.join(known)}", remedy=nearest(name, known)
        )
    models = {(each.weights.hub, each.weights.models[name]) for each in having}
    if len(models) > 1:
        names = ", ".join(each.name for each in having)
        expected = "one model of that name, or --lock"
        raise UsageError("--model", seen=f"{name} differs in {names}", expected=expected, remedy="Say --lock LOCK.")
    return having[0]


def _changed(lock: Lock, name: str, model: WeightsModel, now: Manifest, folder: Path | None) -> AerieError:
    """The source has other files than those that were pinned."""
    try:
        before = {file.path: file for file in load(lock, name, folder).files}
    except AerieError:
        words = f"a manifest with the digest {digest(now)}"
    else:
        after = {file.path: file for file in now.files}
        differ = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        kinds = [f"{_word(path in before, path in after)} {path}" for path in differ[:5]]
        words = "; ".join([*kinds, *(["…"] if len(differ) > 5 else [])])
    remedy = 'To take what is there now, set manifest_sha256 = "" in the lock and make it again.'
    return AerieError(
        f"model {name} in lock {lock.name}", seen=words, expected=f"manifest {model.manifest_sha256}", remedy=remedy
    )


def _word(was: bool, is_there: bool) -> str:
    return "changed" if was and is_there else "gone" if was else "new"


def _check(manifest: Manifest, name: str, model: WeightsModel, *, where: str, remedy: str) -> None:
    source = manifest.source
    pairs = [
        ("digest", digest(manifest), model.manifest_sha256),
        ("model", manifest.model, name),
        ("source", source.kind, model.source),
        ("location", source.location, model.location),
        ("revision", source.revision, model.revision),
    ]
    for what, seen, expected in pairs:
        if seen != expected:
            raise AerieError(f"{where}: {what}", seen=seen, expected=f"{expected}, as in the lock", remedy=remedy)


def _find(name: str, folder: Path | None) -> Path | None:
    files = [place / f"{name}{SUFFIX}" for place in _folders(folder)]
    return next((file for file in files if file.is_file()), None)


def _folders(folder: Path | None) -> list[Path]:
    shipped = repository() / "inventory" / "manifests"
    return [shipped] if folder is None or folder / "manifests" == shipped else [folder / "manifests", shipped]
