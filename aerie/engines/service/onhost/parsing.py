"""Asks the engine of an environment on this host whether it takes services' arguments. Changes nothing."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aerie.engines import arguments

from .definition import Service, parse

__all__ = ["problems"]


def problems(documents: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """For each service what the engine's own parser says against it; None where it takes all.

    documents: at least one, of the same engine and interpreter: its import takes seconds, and is done once. Raises
    AerieError where the engine cannot be imported.
    """
    services = [parse(document) for document in documents]
    first = services[0]
    with tempfile.TemporaryDirectory() as folder:
        lines = [service.flags for service in services]
        return arguments.problems(first.engine, lines, Path(first.program[0]), _environment(first, folder))


def _environment(service: Service, folder: str) -> dict[str, str]:
    # Root asks, the engine's account serves: what an import caches must not lie, owned by root, where that one writes.
    own = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT"), folder)
    return {"PATH": os.environ.get("PATH", os.defpath), **service.environment, **own}
