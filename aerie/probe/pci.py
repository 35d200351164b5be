"""The PCI bus: GPUs whatever their driver says, and bridges above them that redirect traffic between peers."""

from __future__ import annotations

import os
import re
from typing import Any

from .reading import join, names, optional, text

__all__ = ["acs", "control", "gpus", "iommu"]

NVIDIA = "0x10de"
DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers
DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ACS = 0x000D
# Source validation (bit 0) and translation blocking (1) do not turn a transfer away from its direct path. Request
# redirect (2), completion redirect (3), upstream forwarding (4) and egress control (5) do.
REDIRECTING = 0b111100


def gpus(root: str = "/") -> list[dict[str, Any]]:
    """The snapshot's PciGpu of every display or 3D controller of NVIDIA, by address."""
    folder = join(root, DEVICES)
    found = []
    for name in names(folder):
        device = os.path.join(folder, name)
        if optional(os.path.join(device, "vendor")) != NVIDIA:
            continue
        if not (optional(os.path.join(device, "class")) or "").startswith(DISPLAY):
            continue
        driver = os.path.join(device, "driver")
        identity = text(os.path.join(device, "device")).strip()
        found.append(
            {
                "bus_id": name,
                "pci_id": f"{NVIDIA[2:]}:{identity[2:]}",
                "driver": os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None,
            }
        )
    return found


def acs(root: str = "/") -> list[dict[str, Any]]:
    """The snapshot's Acs of every bridge above a GPU that redirects. PermissionError without root."""
    folder = join(root, DEVICES)
    bridges = set()
    for gpu in gpus(root):
        # The device's real folder lies in those of the bridges above it.
        path = os.path.realpath(os.path.join(folder, gpu["bus_id"]))
        bridges |= {part for part in path.split("/")[:-1] if ADDRESS.fullmatch(part)}
    found = []
    for bridge in sorted(bridges):
        path = os.path.join(folder, bridge, "config")
        with open(path, "rb") as file:
            config = file.read()
        if len(config) <= 64:
            raise PermissionError(1, "needs root", path)
        value = control(config)
        if value is not None and value & REDIRECTING:
            found.append({"bus_id": bridge, "control": value})
    return found


def control(config: bytes) -> int | None:
    """The ACS control register in a device's configuration space; None where it has none."""
    at = 0x100
    seen = set()
    while at and at not in seen and at + 8 <= len(config):
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20 & 0xFFC
    return None


def iommu(root: str = "/") -> str:
    """How the IOMMU treats GPUs (all devices where there is no GPU): "off", "pt" or "translated"."""
    folder = join(root, DEVICES)
    groups = [os.path.join(folder, gpu["bus_id"], "iommu_group") for gpu in gpus(root)]
    if not groups:
        groups = [os.path.join(folder, name, "iommu_group") for name in names(folder)]
    types = {optional(os.path.join(group, "type")) for group in groups} - {None}
    if not types:
        return "off"  # the kernel puts every device behind an IOMMU into a group
    return "pt" if types == {"identity"} else "translated"
