"""What a host is told of a staging: the document aerie.staging/1, made from a lock's table and a manifest."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aerie.errors import UsageError
from aerie.lock import Weights

from . import manifest as manifests
from .manifest import Manifest

__all__ = ["SCHEMA", "document", "target"]

SCHEMA = "aerie.staging/1"


def target(path: str, model: str, manifest_sha256: str) -> str:
    """The folder on a host of the model by this manifest. path: the lock's [weights] path."""
    return f"{path.rstrip('/')}/{model}@{manifest_sha256[:12]}"


def document(
    weights: Weights,
    manifest: Manifest,
    *,
    source: str = "",
    peers: Sequence[Mapping[str, str]] = (),
    position: int = 0,
    may_use_origin: bool = True,
    warm: str = "auto",
    sweep_partials: bool = False,
    deep: bool = False,
) -> dict[str, Any]:
    """The staging of `manifest`, a model of the lock's table `weights`, as JSON types.

    source: where to look before the lock's own: an http address, "user@host:/folder" or "rsync://…", or a folder of the
    host; the manifest decides what the files are. peers: {name, url} of other hosts that stage the same; position: of
    this host among them, 0 first.
    """
    return {
        "schema": SCHEMA,
        "model": manifest.model,
        "target": target(weights.path, manifest.model, manifests.digest(manifest)),
        "manifest": manifests.to_dict(manifest),
        "sources": [*([_named(source)] if source else []), _origin(weights, manifest.model)],
        "peers": [dict(peer) for peer in peers],
        "position": position,
        "may_use_origin": may_use_origin,
        "parallel": weights.parallel,
        "warm": warm,
        "sweep_partials": sweep_partials,
        "deep": deep,
    }


def _named(source: str) -> dict[str, str]:
    """A source as an operator writes it. Raises UsageError for what is none."""
    kinds = {"http": r"https?://\S+", "rsync": r"rsync://\S+|[^\s/:]+:/(?!/)\S*", "folder": r"/\S*"}
    kind = next((kind for kind, form in kinds.items() if re.fullmatch(form, source)), None)
    if kind is None:
        expected = "http://…, https://…, rsync://…, user@host:/folder, or the path of a folder, without blanks"
        raise UsageError("--source", seen=source, expected=expected, remedy="Correct it.")
    return {"kind": kind, "url": f"{source.rstrip('/')}/"}


def _origin(weights: Weights, model: str) -> dict[str, str]:
    """Where the files come from, as hosts are told."""
    chosen = weights.models[model]
    location = chosen.location.rstrip("/") + "/"
    if chosen.source == "hub":
        hub = weights.hub or os.environ.get("HF_ENDPOINT") or _library_hub()
        url = f"{hub.rstrip('/')}/{location}resolve/{chosen.revision}/"
        return {"kind": "hub", "url": url, "token_file": weights.token_file}
    return {"kind": "folder" if chosen.source == "folder" else "http", "url": location}


def _library_hub() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)
