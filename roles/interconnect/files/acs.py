#!/usr/bin/python3
"""PCIe access control (ACS) of the bridges above NVIDIA GPUs: `clear` it, or `show` it with what the IOMMU does.

With ACS on, a packet from one GPU to another goes up to the root complex and back: half the bandwidth, and hangs where
the IOMMU translates. Firmware sets it anew at each boot. Standard library only; clear needs root.
"""

import json
import os
import re
import struct
import sys
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
ADDRESS = re.compile(r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
ACS_CAPABILITY = 0x000D
ACS_CONTROL = 6  # offset of its control register, 16 bits
EXTENDED = 0x100  # where extended capabilities begin


def gpus() -> list[Path]:
    """Devices of vendor 10de whose class is a display controller: 0x0300 or 0x0302."""
    found = []
    for device in sorted(DEVICES.glob("*")):
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        if vendor == "0x10de" and kind.startswith("0x03"):
            found.append(device)
    return found


def bridges(devices: list[Path]) -> list[Path]:
    """Every bridge between these devices and their root complexes: root ports and ports of switches."""
    above = set()
    for device in devices:
        above |= {part for part in device.resolve().parts[:-1] if ADDRESS.match(part)}
    return [DEVICES / name for name in sorted(above)]


def control(bridge: Path) -> int | None:
    """Where in its configuration space a bridge has its ACS control register; None: it has no ACS."""
    with open(bridge / "config", "rb") as file:
        space = file.read(4096)
    at, seen = EXTENDED, set()
    while at >= EXTENDED and at + 8 <= len(space) and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", space, at)
        if header & 0xFFFF == ACS_CAPABILITY:
            return at + ACS_CONTROL
        at = header >> 20
    return None


def read(bridge: Path, at: int) -> int:
    """The register's 16 bits."""
    with open(bridge / "config", "rb") as file:
        return int(struct.unpack("<H", os.pread(file.fileno(), 2, at))[0])


def clear() -> list[str]:
    """The bridges whose register was not zero and is now. Raises OSError where a kernel forbids the write."""
    changed = []
    for bridge in bridges(gpus()):
        at = control(bridge)
        if at is not None and read(bridge, at):
            with open(bridge / "config", "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), b"\0\0", at)
            changed.append(bridge.name)
    return changed


def acs() -> dict[str, int]:
    """The register by bridge, of those that have one."""
    found = ((bridge, control(bridge)) for bridge in bridges(gpus()))
    return {bridge.name: read(bridge, at) for bridge, at in found if at is not None}


def iommu() -> dict[str, str]:
    """off, pt or translated by GPU: what its IOMMU group does with its addresses."""
    seen = {}
    for device in gpus():
        kind = device / "iommu_group/type"
        text = kind.read_text().strip() if kind.exists() else ""
        seen[device.name] = {"": "off", "identity": "pt"}.get(text, "translated")
    return seen


def main() -> int:
    """Answer in JSON on stdout: clear gives the list of bridges changed, show gives acs and iommu."""
    answer = clear() if sys.argv[1:] == ["clear"] else {"acs": acs(), "iommu": iommu()}
    json.dump(answer, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
