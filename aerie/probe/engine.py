"""Services of engines: the live slot of each model, how its unit stands, and what its processes may use."""

from __future__ import annotations

import json
import os
from typing import Any

from .reading import join, names, optional, program, reading, text

__all__ = ["limits", "parse", "service", "services", "unit_of"]

STATE = "/var/lib/aerie/engine"  # one file a model, of which slot is live
CONFIGURATION = "/etc/aerie/engine"
PROPERTIES = "Id,ActiveState,Result,NRestarts,MainPID"
LIMITS = {"Max locked memory": "memlock", "Max open files": "nofile", "Max stack size": "stack"}


def services(root: str = "/") -> list[dict[str, Any]]:
    """The snapshot's EngineService of every model that something is to serve."""
    live = {}
    for name in names(join(root, STATE)):
        state = json.loads(text(join(root, f"{STATE}/{name}"))) if name.endswith(".json") else {}
        if state.get("live"):
            live[state["model"]] = state["live"]
    if not live:
        return []
    units = [unit_of(model, slot) for model, slot in live.items()]
    shown = parse(str(program("systemctl", "show", f"--property={PROPERTIES}", *units, "aerie-front.service").get()))
    front = shown.get("aerie-front.service", {}).get("ActiveState", "")
    return [service(model, slot, shown.get(unit_of(model, slot), {}), front, root) for model, slot in live.items()]


def unit_of(model: str, slot: str) -> str:
    """The unit of a slot."""
    return f"aerie-engine-{model}-{slot}.service"


def parse(said: str) -> dict[str, dict[str, str]]:
    """Properties by unit, from the blocks that systemctl prints."""
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in said.split("\n\n")]
    return {block["Id"]: block for block in blocks if "Id" in block}


def service(model: str, slot: str, unit: dict[str, str], front: str, root: str = "/") -> dict[str, Any]:
    """One model's. unit: properties of the live slot's unit; front: the state of the front's unit."""
    document = json.loads(text(join(root, f"{CONFIGURATION}/{model}/{slot}.json")))
    pid = unit.get("MainPID", "0")
    table = optional(join(root, f"/proc/{pid}/limits"))  # it may end meanwhile
    return {
        "model": model,
        "unit": unit_of(model, slot),
        "engine": document["engine"],
        "version": document["version"],
        "address": document["front"],
        "active": unit.get("ActiveState", ""),
        "result": unit.get("Result", ""),
        "restarts": int(unit.get("NRestarts") or 0),
        "front_active": front,
        "limits": limits(table) if table else None,
        "key_mode": reading(_mode, join(root, f"{CONFIGURATION}/{model}/api-key")),
    }


def limits(table: str) -> dict[str, int | None]:
    """Soft limits in /proc/PID/limits, in bytes and files; None is unlimited."""
    found: dict[str, int | None] = {}
    for line in table.splitlines():
        for title, name in LIMITS.items():
            if line.startswith(title):
                word = line[len(title) :].split()[0]
                found[name] = None if word == "unlimited" else int(word)
    return found


def _mode(path: str) -> str:
    """ "600 0": the mode, and the owner's number."""
    status = os.stat(path)
    return f"{status.st_mode & 0o7777:o} {status.st_uid}"
