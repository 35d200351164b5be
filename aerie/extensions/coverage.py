"""Whether device code runs on an architecture: the compatibility rules of the CUDA Programming Guide."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from aerie.errors import UsageError
from aerie.extensions.device_code import Entry

__all__ = ["Coverage", "covers"]

# Devices on which family-specific code runs; a family that is not here runs on its own architecture only.
# CUDA Programming Guide 13, 5.1.2, table "Family-Specific Compatibility"; it says that families may grow, so a newer
# guide may add devices here. sm_101 was renamed sm_110 with CUDA 13.
_FAMILIES = {100: {100, 103}, 101: {101}, 103: {103}, 110: {110}, 120: {120, 121}, 121: {121}}
# "Binary compatibility is supported only for the desktop. It is not supported for Tegra", nor between the two
# (CUDA C++ Programming Guide, "Binary Compatibility"): Jetson and DRIVE run their own SASS only, and nobody else's.
_TEGRA = {53, 62, 72, 87}
_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a library holds for a device.

    state: "sass": at least one unit has code that runs as it is; "ptx": none has, but the driver could compile one's
    PTX, if it is new enough for it (not judged here); "none": device code, but none for this device; "empty": no
    device code at all.
    The three counts are of units: a library may hold SASS in some only, which is often meant (kernels of one
    architecture) and sometimes a mistake; a launch from the others fails.
    """

    arch: str
    state: Literal["sass", "ptx", "none", "empty"]
    sass_units: int
    ptx_units: int
    none_units: int


def covers(entries: Iterable[Entry], arch: str) -> Coverage:
    """What a library's entries hold for a device, `arch` being its compute capability 12.0 as "sm_120".

    Relocatable entries count only where nothing was linked (an object, an archive): else they are what was linked.
    UsageError where `arch` is no device's.
    """
    device, suffix = _parse(arch)
    if suffix:
        raise UsageError("arch", seen=arch, expected="a device's", remedy=f"sm_{device}: code has suffixes, not GPUs.")
    found = tuple(entries)
    judged = [entry for entry in found if not entry.is_relocatable] or found
    units = {entry.unit for entry in judged}
    sass = {entry.unit for entry in judged if entry.kind == "sass" and _sass_runs(entry.arch, device)}
    ptx = {entry.unit for entry in judged if entry.kind == "ptx" and _ptx_compiles(entry.arch, device)} - sass
    return Coverage(
        arch=arch,
        state="sass" if sass else "ptx" if ptx else "none" if units else "empty",
        sass_units=len(sass),
        ptx_units=len(ptx),
        none_units=len(units - sass - ptx),
    )


def _parse(arch: str) -> tuple[int, str]:
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise UsageError("arch", seen=arch, expected="sm_ and a number", remedy="12.0 is written sm_120.")
    return int(match[1]), match[2]


def _sass_runs(made_for: str, device: int) -> bool:
    """A cubin for X.y runs on X.z with z >= y; an 'a' one on its own architecture, an 'f' one on its family."""
    number, suffix = _parse(made_for)
    if suffix or number == device:
        return _is_specific_for(number, suffix, device)
    return number // 10 == device // 10 and number < device and not {number, device} & _TEGRA


def _ptx_compiles(made_for: str, device: int) -> bool:
    """PTX compiles for its own and every later compute capability; 'a' and 'f' are as narrow as in cubins."""
    number, suffix = _parse(made_for)
    return _is_specific_for(number, suffix, device) if suffix else number <= device


def _is_specific_for(number: int, suffix: str, device: int) -> bool:
    return number == device or (suffix == "f" and device in _FAMILIES.get(number, ()))
