"""What the tests of a host share: readings of a snapshot that may be missing, and comparisons that name offenders."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import pytest

from aerie.snapshot import Gpu, Package, Snapshot, Unknown

Value = TypeVar("Value")

# Packages that carry the driver's version, of NVIDIA's repository and of the distributions' archives.
DRIVER_PACKAGE = re.compile(
    r"nvidia-(open|driver(?!-pinning)|dkms|kernel|utils|compute|firmware|persistenced|smi|alternative)|firmware-nvidia"
    r"|libnvidia-|libcuda1|cuda-drivers|linux-modules-nvidia"
)

# "590.48.01-0ubuntu1": tools beside the driver (libnvidia-container1 1.17.8-1) have versions of another shape.
DRIVER_VERSION = re.compile(r"(\d+:)?\d{3}\.\d+")


def known(value: Value | Unknown) -> Value:
    """The value; skips the test when the probe could not read it: base.unknown is what fails then."""
    if isinstance(value, Unknown):
        pytest.skip(f"not read: {value.unknown}")
    return value


class Measured(float):
    """A number that is compared as such and shown with its unit."""

    def __new__(cls, value: float, unit: str) -> "Measured":
        self = super().__new__(cls, value)
        self.unit = unit
        return self

    def __str__(self) -> str:
        return f"{float(self):g} {self.unit}"


class Dotted(str):
    """A version that is compared by its numbers and shown as written: 590.48.01 is above 590.5."""

    def __ge__(self, other: str) -> bool:
        return self.numbers >= Dotted(other).numbers

    @property
    def numbers(self) -> tuple[int, ...]:
        """(590, 48, 1)"""
        return tuple(int(part) for part in self.split("."))


def those(gpus: Iterable[Gpu], field: str, value: bool) -> list[str]:
    """The GPUs whose field is exactly this; not those that have no such thing or did not say."""
    return [named(gpu) for gpu in gpus if getattr(gpu, field) is value]


def offenders(gpus: Iterable[Gpu], field: str, is_wrong: Callable[[Any], bool]) -> dict[str, Any]:
    """The field's value by GPU, of those where it is wrong. What a card does not have or did not say is not wrong."""
    read = ((gpu, getattr(gpu, field)) for gpu in gpus)
    return {
        named(gpu): value
        for gpu, value in read
        if value is not None and not isinstance(value, Unknown) and is_wrong(value)
    }


def named(gpu: Gpu) -> str:
    """ "GPU 3 (0000:c1:00.0)": the index alone changes with the order of the bus."""
    return f"GPU {gpu.index} ({short_bus_id(gpu.bus_id)})" if gpu.bus_id else f"GPU {gpu.index}"


def short_bus_id(bus_id: str) -> str:
    """ "0000:05:00.0" of NVML's "00000000:05:00.0" and of the kernel's own form."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def installed(packages: Mapping[str, Package]) -> dict[str, str]:
    """Version by name of the packages that are there: also half-configured ones."""
    return {name: package.version for name, package in packages.items() if package.status[1:2] not in ("n", "c", "")}


def upstream(version: str) -> str:
    """ "590.48.01" of the package version "1:590.48.01-0ubuntu1"."""
    return re.split(r"[-+~]", version.split(":", 1)[-1])[0]


def in_series(release: str, series: Sequence[str]) -> bool:
    """Is 6.8.0-31-generic of series 6.8? 6.80 is not, and an empty list allows every kernel."""
    return not series or any(re.match(rf"{re.escape(one)}(?![0-9])", release) for one in series)


def unknowns(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Path and reason of everything that the probe could not read."""
    if isinstance(value, Unknown):
        yield above, value.unknown
    elif is_dataclass(value):
        for field in fields(value):
            yield from unknowns(getattr(value, field.name), f"{above}.{field.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from unknowns(inner, f"{above}.{key}")
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from unknowns(inner, f"{above}.{index}")


def driver_packages(snapshot: Snapshot) -> dict[str, str]:
    """Version by name of every installed package of the NVIDIA driver."""
    packages = installed(known(snapshot.base.packages))
    return {
        name: version
        for name, version in packages.items()
        if DRIVER_PACKAGE.match(name) and DRIVER_VERSION.match(version)
    }


def needs_driver(snapshot: Snapshot) -> None:
    """Skips the test where no driver is installed and none loaded: driver.not-installed is what fails then."""
    if not driver_packages(snapshot) and snapshot.driver.loaded_version is None:
        pytest.skip("no driver is installed")


def is_lost(gpu: Gpu) -> bool:
    """Has the card stopped answering since the driver saw it? NVML says so to every question then."""
    values = (getattr(gpu, field.name) for field in fields(gpu))
    return bool(gpu.error) or any(isinstance(one, Unknown) and "lost" in one.unknown.lower() for one in values)


def lost_bus_ids(snapshot: Snapshot) -> set[str]:
    """Addresses of the lost cards. Where NVML does not tell one, all that NVML does not name may be it."""
    gpus = snapshot.gpus if isinstance(snapshot.gpus, tuple) else ()
    lost = [gpu for gpu in gpus if is_lost(gpu)]
    found = {short_bus_id(gpu.bus_id) for gpu in lost if gpu.bus_id}
    if any(not gpu.bus_id for gpu in lost) and isinstance(snapshot.pci_gpus, tuple):
        named_ones = {short_bus_id(gpu.bus_id) for gpu in gpus if gpu.bus_id}
        found |= {short_bus_id(gpu.bus_id) for gpu in snapshot.pci_gpus} - named_ones
    return found
