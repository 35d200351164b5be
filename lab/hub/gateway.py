"""The hub of the lab's hosts, on the gateway: its models, their manifests, and how it goes wrong on demand."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from aerie.errors import AerieError
from aerie.paths import repository
from aerie.runbook.step import write_atomic
from aerie.weights.manifest import SUFFIX, File, Manifest, Source, digest, dump

from .. import cgroups, network
from . import content, faults
from .models import MIB, model
from .service import Hub
from .spec import Spec

__all__ = ["MODES", "hub", "mode", "start", "stop", "words", "write_manifests"]

NAME = "hub"  # of its cgroup
PORT, STORE_PORT = 8079, 8080
MODES = {"normal": "as it should be", "gone": "nothing answers", **faults.KINDS}
# Name in the locks, repository of the hub, who may have it, shards, bytes of each, seed.
MODELS: tuple[tuple[str, str, content.Access, int, int, int], ...] = (
    ("tiny", "aerie-lab/tiny", "public", 8, 4 * MIB, 0),
    ("drafter", "aerie-lab/drafter", "public", 1, 2 * MIB, 1),
    ("gated", "aerie-lab/gated", "gated", 2, MIB, 2),
)


def hub(state: Path) -> Hub:
    """The handle of this lab's hub; nothing is started."""
    places = (str(network.GATEWAY), PORT), (str(network.STORE), STORE_PORT)
    return Hub(spec=Spec(folder=str(state / NAME), hub=places[0], store=places[1], detach=True))


def start(state: Path) -> None:
    """Serve the lab's models, as rightly or wrongly as it was left; nothing happens where that is done already."""
    served = hub(state)
    for _, name, access, shards, shard_bytes, seed in MODELS:
        if content.read(served.folder, name) is None:
            served.add(name, model(shards=shards, shard_bytes=shard_bytes, seed=seed), access)
    if (served.folder / "gone").exists() or cgroups.pids(NAME):
        return
    served.spec.cgroups = [str(path) for path in cgroups.create(NAME)]
    argv = [sys.executable, "-m", "lab.hub.server", json.dumps(asdict(served.spec))]
    with open(served.folder / "serve.log", "ab") as log:
        null = subprocess.DEVNULL
        done = subprocess.run(argv, stdin=null, stdout=log, stderr=log, cwd=repository(), check=False, timeout=60)
    if done.returncode != 0:
        raise AerieError(
            "lab hub",
            seen="\n".join(Path(log.name).read_text().splitlines()[-3:]),
            expected=f"to serve at {served.url} and {served.store_url}",
            remedy=f"See who has the ports: ss -ltnp '( sport = :{PORT} or sport = :{STORE_PORT} )'",
        )


def stop() -> None:
    """End the process and remove its cgroup, if there are any."""
    cgroups.kill(NAME)
    cgroups.remove(NAME)


def mode(state: Path, wanted: str, *, path: str = "*", times: int | None = None) -> None:
    """From the next request on one of MODES and nothing else; path and times as in a `Fault`.

    Raises UsageError for a word that is none of MODES.
    """
    served = hub(state)
    chosen = () if wanted in ("normal", "gone") else (faults.Fault(kind=wanted, path=path, times=times),)
    faults.write(served.folder, chosen)
    gone = served.folder / "gone"
    if wanted == "gone":
        gone.touch()
        stop()
    else:
        gone.unlink(missing_ok=True)
        start(state)


def words(state: Path) -> dict[str, str]:
    """What the lab's locks say in capitals: addresses, revisions, digests of manifests."""
    served, told = hub(state), {"HUB": hub(state).url}
    for manifest in _manifests(served):
        name = manifest.model.upper()
        told[f"{name}_REVISION"], told[f"{name}_LOCATION"] = manifest.source.revision, manifest.source.location
        told[f"{name}_MANIFEST"] = digest(manifest)
    return told


def write_manifests(state: Path, folder: Path) -> None:
    """The manifests of all models, in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for manifest in _manifests(hub(state)):
        write_atomic(folder / f"{manifest.model}{SUFFIX}", dump(manifest), durable=False)


def _manifests(served: Hub) -> Iterator[Manifest]:
    """Of each model, and of the first one as a mirror has it."""
    for index, (model_name, name, *_) in enumerate(MODELS):
        found = content.read(served.folder, name)
        if found is None:
            raise AerieError("lab hub", seen=f"no {name}", expected="it", remedy="Run invoke lab.up first.")
        entries = found.revisions[found.head].items()
        files = tuple(
            File(path=path, size=entry.size, sha256=entry.sha256, git_sha1=None if entry.sha256 else entry.git_sha1)
            for path, entry in entries
        )
        source = Source(kind="hub", location=name, revision=found.head)
        yield Manifest(model=model_name, source=source, files=files)
        if index == 0:
            files = tuple(_with_sha256(served, name, found.head, path, entry) for path, entry in entries)
            source = Source(kind="http", location=served.files_url(name, found.head))
            yield Manifest(model="mirror", source=source, files=files)


def _with_sha256(served: Hub, name: str, revision: str, path: str, entry: content.Entry) -> File:
    file = content.file_of(served.folder, name, revision, path)
    return File(path=path, size=entry.size, sha256=entry.sha256 or hashlib.sha256(file.read_bytes()).hexdigest())
