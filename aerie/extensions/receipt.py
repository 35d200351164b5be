"""The receipt of a wheel in the store: what it was made from, how, where, and what is in it. Standard library only."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aerie.extensions import contents
from aerie.extensions.store import sha256_of
from aerie.statement import statement

__all__ = ["PREDICATE", "of_wheel"]

PREDICATE: Final = "urn:aerie:wheel:1"


def of_wheel(
    wheel: Path,
    *,
    package: str,
    version: str,
    origin: Mapping[str, str],
    key: Mapping[str, Any] | None = None,
    build: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The statement about this wheel, which is read for it.

    origin: {"uri", "sha256"} of what was fetched, the wheel itself or the source of the build; key: of the build;
    build: what was asked and what it took. Raises AerieError where it is no wheel.
    """
    predicate = {
        "package": package,
        "version": version,
        "size_bytes": wheel.stat().st_size,
        "how": "built" if key else "fetched",
        "origin": dict(origin),
        "key": key and dict(key),
        "build": build and dict(build),
        "contents": contents.of_wheel(wheel).to_dict(),
        "host": socket.gethostname(),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return statement([(wheel.name, "sha256", sha256_of(wheel))], PREDICATE, predicate)
