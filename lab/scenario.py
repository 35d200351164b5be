"""Scenarios of the GPU stand-in: lab/scenarios/<name>.toml, checked and turned into what a host reads.

A scenario says how the machine differs from one with eight healthy cards (lab/gpu/cards.toml): `always`, or
`until_reboot`. Both have these keys, all of them optional:

    gpu.<number or "all">   a card's values: those of cards.toml, and those in CARD below
    driver                  loaded, version, flavour, disable_hmm: of the module in the kernel, whatever lies on disk
    kernel_log              lines of the kernel's log
    acs                     the control register of bridges with ACS
    iommu                   "identity", "DMA-FQ" or "off"; else the kernel's command line decides
    nouveau, secure_boot    true, 1
    nvml                    init_error: what nvmlInit answers
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aerie.choice import unknown_name
from aerie.errors import AerieError

__all__ = ["Scenario", "cards", "load", "names"]

HERE = Path(__file__).resolve().parent
CARD = {
    "clock_event_reasons", "ecc_corrected", "ecc_pending", "ecc_uncorrected", "gsp", "gsp_version", "in_nvml",
    "link_gen_card", "lost", "memory_used_mib", "mig", "mig_pending", "on_bus", "performance_state", "persistence",
    "power_mw", "recovery_action", "remap_failed", "remap_pending", "remapped_correctable", "remapped_uncorrectable",
    "replays", "temperature_c", "utilization_percent", *(f"p2p.{number}" for number in range(8)),
    *(f"compute.{number}" for number in range(4)),
}  # fmt: skip
PART = {
    "acs": None, "iommu": None, "kernel_log": None, "nouveau": None, "secure_boot": None, "gpu": None,
    "driver": {"loaded", "version", "flavour", "disable_hmm"}, "nvml": {"init_error"},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """finding: the id that `plan` gives for it, and no other; None where there is nothing to find.

    packages: installed beside the driver; kernels: releases installed beside the running one.
    """

    name: str
    about: str
    finding: str | None
    packages: tuple[str, ...]
    kernels: tuple[str, ...]
    always: Mapping[str, Any]
    until_reboot: Mapping[str, Any]

    def document(self) -> str:
        """/etc/lab/scenario.json, which lab-gpu on the host reads."""
        parts = {"name": self.name, "kernels": self.kernels, "cards": cards()}
        return json.dumps({**parts, "always": self.always, "until_reboot": self.until_reboot}, indent=1)

    @property
    def has_driver(self) -> bool:
        """Does a new host of this scenario come up with a driver?"""
        return self.name != "bare"


def names() -> tuple[str, ...]:
    """Every scenario, in order."""
    return tuple(sorted(file.stem for file in (HERE / "scenarios").glob("*.toml")))


def load(name: str) -> Scenario:
    """The scenario of that name. Raises UsageError that names the nearest one, AerieError for a wrong file."""
    if name not in names():
        raise unknown_name("scenario", name, names())
    file = HERE / "scenarios" / f"{name}.toml"
    document = tomllib.loads(file.read_text())
    unknown = list(_unknown(document))
    if unknown:
        raise AerieError(
            str(file), seen=", ".join(unknown), expected="keys of lab/scenario.py", remedy="Correct the scenario."
        )
    return Scenario(
        name=name,
        about=document["about"],
        finding=document.get("finding"),
        packages=tuple(document.get("packages", ())),
        kernels=tuple(document.get("kernels", ())),
        always=document.get("always", {}),
        until_reboot=document.get("until_reboot", {}),
    )


def _unknown(document: Mapping[str, Any]) -> Iterator[str]:
    """Paths of keys that nothing reads."""
    yield from sorted(set(document) - {"about", "finding", "packages", "kernels", "always", "until_reboot"})
    plugged = cards()
    known = CARD | set(plugged["0"])
    for where in ("always", "until_reboot"):
        for key, value in document.get(where, {}).items():
            if key not in PART:
                yield f"{where}.{key}"
            elif key == "gpu":
                yield from (f"{where}.gpu.{which}" for which in value if which not in {*plugged, "all"})
                rows = ((which, fact) for which, facts in value.items() for fact in facts)
                yield from (f"{where}.gpu.{which}.{fact}" for which, fact in rows if fact not in known)
            elif (inner := PART[key]) is not None:
                yield from (f"{where}.{key}.{fact}" for fact in value if fact not in inner)


@cache
def cards() -> dict[str, dict[str, Any]]:
    """The eight cards by number, healthy."""
    rows = tomllib.loads((HERE / "gpu/cards.toml").read_text())
    shared = rows.pop("all")
    return {number: {**shared, **own} for number, own in rows.items()}
