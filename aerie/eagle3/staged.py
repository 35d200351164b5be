"""Models that a profile stages instead of making them: the steps target and baseline-drafter bring them to the host."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.eagle3.profile import Staged
from aerie.errors import AerieError
from aerie.paths import repository
from aerie.runbook.step import Context, Input, Json

if TYPE_CHECKING:
    import torch

    from aerie.lock import Lock
    from aerie.weights.manifest import Manifest

__all__ = ["folder", "stage", "vocabulary_map", "why_stale"]

_POLL_S = 0.5
_UNITS = {"fetching": "bytes", "verifying": "bytes verified", "warming": "bytes in memory"}


def stage(context: Context, chosen: Staged) -> Json:
    """Make the host hold the model, every file verified, and warm where memory suffices; what the evidence keeps of it.

    Goes on where an earlier attempt ended. Raises AerieError with the staging's own words where it fails.
    """
    from aerie.weights.document import document
    from aerie.weights.manifest import digest

    lock, manifest = _pinned(chosen)
    wanted = document(lock.weights, manifest)
    outcome = _run(context, wanted)
    return {
        "chosen": chosen.model_dump(),
        "manifest_sha256": digest(manifest),
        "folder": wanted["target"],
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "code": {file.path: file.hash for file in manifest.files if file.path.endswith(".py")},
        "fetched_bytes": outcome["bytes"]["fetched"],
        "seconds": outcome["seconds"],
        "warm": outcome["warm"],
    }


def folder(given: Input, name: str) -> Path:
    """Where the model lies that the step left: staged on the host, or made as `name` among its files."""
    staged = given.evidence.get("staged")
    return Path(staged["folder"]) if staged else given.path / name


def why_stale(evidence: Mapping[str, Json]) -> str | None:
    """Why the staged model no longer serves: another manifest in the lock, or files that are not as verified."""
    if not (staged := evidence.get("staged")):
        return None
    from aerie.weights import manifest as manifests
    from aerie.weights.onhost.survey import State, survey
    from aerie.weights.onhost.target import Target, read_stamps

    chosen = Staged.model_validate(staged["chosen"])
    try:
        _, manifest = _pinned(chosen)
    except AerieError as error:
        return str(error)
    if (pin := manifests.digest(manifest)) != staged["manifest_sha256"]:
        return f"lock {chosen.lock} pins another manifest of {chosen.model} by now, {pin[:12]}"
    target = Target(Path(staged["folder"]))
    wrong = [one for one in survey(target, manifest, read_stamps(target, pin)).files if one.state != State.VERIFIED]
    return f"{target.path / wrong[0].file.path} is {wrong[0].state}" if wrong else None


def vocabulary_map(drafter: Path) -> "dict[str, torch.Tensor]":
    """{d2t, t2d} out of a published drafter's weights; row i of its lm_head means token i + d2t[i].

    A drafter with the target's whole vocabulary has none and gets the identity. Raises AerieError where the map is
    not one: ids that do not rise or lie outside of the vocabulary.
    """
    import torch
    from safetensors.torch import load_file

    config = json.loads((drafter / "config.json").read_bytes())
    tensors: dict[str, Any] = {}
    for file in sorted(drafter.glob("*.safetensors")):
        tensors |= {name: tensor for name, tensor in load_file(file).items() if name in ("d2t", "t2d")}
    size, vocab_size = config["draft_vocab_size"] or config["vocab_size"], config["vocab_size"]
    d2t = tensors.get("d2t", torch.zeros(size, dtype=torch.int64))
    ids = torch.arange(len(d2t)) + d2t
    if len(d2t) != size or not bool((ids[1:] > ids[:-1]).all()) or not 0 <= int(ids[0]) <= int(ids[-1]) < vocab_size:
        raise AerieError(
            f"{drafter}: d2t",
            seen=f"{len(d2t)} entries, ids {int(ids.min())} to {int(ids.max())}",
            expected=f"{size} rising ids below {vocab_size}",
            remedy="The drafter is not usable as it is: look at its repository for another revision.",
        )
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    if "t2d" in tensors and not torch.equal(tensors["t2d"].bool(), t2d):
        raise AerieError(
            f"{drafter}: t2d", seen="marks other ids than d2t leads to", expected="the same ids", remedy="See d2t."
        )
    return {"d2t": d2t, "t2d": t2d}


def _pinned(chosen: Staged) -> "tuple[Lock, Manifest]":
    from aerie import lock as locks
    from aerie.weights import models

    inventory = Path(chosen.inventory) if chosen.inventory else None
    lock = locks.load(chosen.lock, inventory)
    return lock, models.load(lock, chosen.model, inventory)


def _run(context: Context, wanted: Mapping[str, Json]) -> Json:
    """Run the staging in a process of its own, as on any host, and hand its progress on."""
    spec = context.scratch / "staging.json"
    spec.write_text(json.dumps(wanted))
    job = context.scratch / "staging"
    job.mkdir()
    argv = [sys.executable, "-P", "-m", "aerie.weights.onhost", "stage", str(spec), str(job)]
    environment = {**os.environ, "PYTHONPATH": str(repository())}
    with subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL) as child:
        try:
            while child.poll() is None:
                _report(context, job / "progress.json")
                time.sleep(_POLL_S)
        finally:
            child.terminate()  # nothing happens to one that has ended; what has arrived is kept
    outcome: Json = json.loads((job / "outcome.json").read_bytes())
    if (error := outcome["error"]) is not None:
        raise AerieError(error["where"], seen=error["seen"], expected=error["expected"], remedy=error["remedy"])
    return outcome


def _report(context: Context, file: Path) -> None:
    try:
        now = json.loads(file.read_bytes())
    except FileNotFoundError:  # it has just started
        return
    counts, state = now["bytes"], now["state"]
    done = {"verifying": counts["verified"], "warming": counts["resident"] or 0}.get(state, counts["on_disk"])
    context.progress(done, counts["total"], unit=_UNITS.get(state, "bytes"), note=state)
