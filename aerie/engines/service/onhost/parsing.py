"""Asks the engine of an environment on this host whether it takes a service's arguments. Changes nothing."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerie.engines import arguments

from .definition import Service, parse

__all__ = ["problem"]


def problem(document: Mapping[str, Any]) -> str | None:
    """What the engine's own parser says against the service of this document; None where it takes all.

    Raises AerieError where the engine cannot be imported.
    """
    service = parse(document)
    with tempfile.TemporaryDirectory() as folder:
        (said,) = arguments.problems(
            service.engine, [service.flags], Path(service.program[0]), _environment(service, folder)
        )
    return said


def _environment(service: Service, folder: str) -> dict[str, str]:
    # Root asks, the engine's account serves: what an import caches must not lie, owned by root, where that one writes.
    own = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT"), folder)
    return {"PATH": os.environ.get("PATH", os.defpath), **service.environment, **own}
