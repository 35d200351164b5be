"""What the other hosts have of the same manifest, asked of each by HTTP every few seconds."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Final, NamedTuple

from aerie.weights.manifest import Manifest

__all__ = ["INTERVAL_S", "Told", "ask"]

INTERVAL_S: Final = 3.0
TIMEOUT_S: Final = 10.0
_LIMIT: Final = 64 << 20  # bytes; a document of any real model is far smaller
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # peers are never behind a proxy


class Told(NamedTuple):
    """What a peer says of itself: the files that it has verified, and its bytes of others."""

    have: frozenset[str]
    parts: dict[str, int]


def ask(url: str, manifest: Manifest, manifest_sha256: str) -> Told:
    """What the peer at `url` has; nothing where it does not answer or stages something else.

    Its word is not trusted: every file is hashed here.
    """
    try:
        # In this order: a file that is verified in between is then told twice, and not never.
        parts = _table(f"{url}.aerie/parts.json", "parts", manifest_sha256)
        files = _table(f"{url}.aerie/verified.json", "files", manifest_sha256)
    except (OSError, http.client.HTTPException):
        return Told(frozenset(), {})
    sizes = {file.path: file.size for file in manifest.files}
    return Told(
        have=frozenset(files.keys() & sizes.keys()),
        parts={
            path: size for path, size in parts.items() if isinstance(size, int) and 0 < size <= sizes.get(path, 0)
        },
    )  # fmt: skip


def _table(url: str, name: str, manifest_sha256: str) -> dict[str, Any]:
    """Of the document there; {} where there is none of this manifest. Raises OSError where nobody answers."""
    try:
        with _DIRECT.open(url, timeout=TIMEOUT_S) as answer:
            document = json.loads(answer.read(_LIMIT))
        table = document[name] if document["manifest_sha256"] == manifest_sha256 else {}
    except (urllib.error.HTTPError, ValueError, KeyError, TypeError):
        return {}
    return table if isinstance(table, dict) else {}
