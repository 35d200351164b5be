"""What the other hosts have verified of the same manifest, asked of each by HTTP every few seconds."""

import json
import urllib.request
from typing import Final

from aerie.weights.manifest import Manifest

__all__ = ["INTERVAL_S", "verified_at"]

INTERVAL_S: Final = 3.0
TIMEOUT_S: Final = 10.0
_LIMIT: Final = 64 << 20  # bytes; a document of any real model is far smaller


def verified_at(url: str, manifest: Manifest, manifest_sha256: str) -> frozenset[str]:
    """The paths that the peer at `url` has; none where it does not answer or stages something else.

    Its word is not trusted: every file is hashed here.
    """
    try:
        with urllib.request.urlopen(f"{url}.aerie/verified.json", timeout=TIMEOUT_S) as answer:
            document = json.loads(answer.read(_LIMIT))
        if document["manifest_sha256"] != manifest_sha256:
            return frozenset()
        return frozenset(file.path for file in manifest.files if file.path in document["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
