"""The GPUs of step preflight: what NVML says of them, and why a run cannot use them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aerie.engines import capability, gpu_arch, gpu_memory
from aerie.engines.capability import Wish
from aerie.engines.service.onhost import gates
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError
from aerie.runbook.step import Json

__all__ = ["names", "read", "reasons", "wish"]

# Of the probe's answer. Temperatures and clocks change by themselves, and evidence that differs runs later steps again.
_KEPT = (
    *("index", "error", "name", "uuid", "bus_id", "compute_capability", "memory_bytes"),
    *("ecc_uncorrected", "remap_failed", "recovery_action", "processes"),
)


def read() -> dict[str, Json]:
    """{"driver", "error", "cards"}, as NVML has them. driver: of its library, None where there is none.

    A card has the probe's fields, and held_bytes: memory in use, rounded down to what a driver's own share may move by.
    """
    from aerie.probe import nvml

    seen = nvml.read()
    cards = seen["gpus"] if isinstance(seen["gpus"], list) else []
    is_whole = bool(cards) and all(card["error"] is None for card in cards)
    used = gpu_memory.used_bytes() if is_whole else {}
    step = gpu_memory.TOLERANCE_BYTES
    return {
        "driver": seen["library_version"] if isinstance(seen["library_version"], str) else None,
        "error": seen["error"],
        "cards": [
            {key: card[key] for key in _KEPT} | {"held_bytes": used.get(card["index"], 0) // step * step}
            for card in cards
        ],
    }


def names(seen: Mapping[str, Json]) -> list[str]:
    """Name and identity of every card, for what holds on these cards alone."""
    return [f"{card['name']} {card['uuid']}" for card in seen["cards"]]


def wish(engine: Engine, model: str, doing: frozenset[str]) -> Wish:
    """What to ask the capability table, of any version and card. model: as the table calls it, "" for none."""
    gpus = engine.gpus
    assert gpus is not None, "asked where GPUs serve"
    return Wish(
        engine=engine.name, version="", arch="", model=model, attention=gpus.attention, moe=gpus.moe, doing=doing
    )


def reasons(seen: Mapping[str, Json], engine: Engine, version: str | None, wish: Wish) -> list[str]:
    """Every reason against serving and training on the first GPUs, as many as a server takes; [] where there is none.

    version: of the engine in its environment, None where it has none; wish: what is to be served, whatever the card.
    """
    gpus = engine.gpus
    assert gpus is not None, "asked where GPUs serve"
    alive = [card for card in seen["cards"] if card["error"] is None]
    taken = alive[: gpus.tensor_parallel] if len(alive) >= gpus.tensor_parallel else seen["cards"]
    driver = {"loaded_version": seen["driver"], "nvml_error": seen["error"]}
    listed: Any = seen["error"] or taken
    stops = gates.of_gpus(gpus.tensor_parallel, {"driver": driver, "gpus": listed})
    found = [f"{stop.seen}; expected {stop.expected} ({stop.finding})" for stop in stops]
    if not alive:
        return found
    found += _short_of_memory(taken, gpus)
    if version is None:
        found.append(f"environments.engine of the profile has no {engine.name}")
    try:
        arch = gpu_arch.of({card["compute_capability"] for card in taken if card["error"] is None})
    except AerieError as error:
        return [*found, str(error)]
    if version is not None:
        told = capability.can_serve(replace(wish, version=version, arch=arch)).reasons
        found += [f"{engine.name} {version} on {arch}: {reason}. {remedy}" for reason, remedy, _ in told]
    return found


def _short_of_memory(cards: Sequence[Mapping[str, Json]], gpus: Gpus) -> list[str]:
    """Memory that something holds already, by a process that NVML shows or not, is missing to the engine's share."""
    found = []
    for card in cards:
        if isinstance(card["memory_bytes"], int):
            free, wanted = card["memory_bytes"] - card["held_bytes"], card["memory_bytes"] * gpus.memory_fraction
            if free < wanted:
                found.append(
                    f"GPU {card['index']} has {free / 1e9:.1f} of {card['memory_bytes'] / 1e9:.1f} GB free; "
                    f"engine.gpus.memory_fraction {gpus.memory_fraction:g} takes {wanted / 1e9:.1f}"
                )
    return found
