"""The driver's stand-in, compiled on this machine at first use and kept in the user's cache, one folder a version."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .cache import kept
from .command import run

__all__ = ["DRIVERS", "Driver", "build"]

HERE = Path(__file__).resolve().parent
SOURCES = (HERE / "gpu/nvml.c", HERE / "gpu/module.c")
MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm")
LICENSES: Mapping[str, str] = {"open": "Dual MIT/GPL", "closed": "NVIDIA"}


@dataclass(frozen=True, slots=True)
class Driver:
    """cuda: what the driver supports, as NVML has it (13010 is 13.1). loads: its module does; else it only builds."""

    version: str
    cuda: int
    loads: bool = True

    @property
    def branch(self) -> str:
        """590 of 590.48.01."""
        return self.version.partition(".")[0]


DRIVERS: Mapping[str, Driver] = {
    driver.version: driver
    for driver in (
        Driver("580.105.08", 13000),
        Driver("590.44.01", 13010),
        Driver("590.48.01", 13010),
        Driver("595.10.02", 13020, loads=False),
    )
}


def build(version: str) -> Path:
    """A folder with the version's libnvidia-ml.so.<version>, and its modules in open/ and closed/."""
    driver = DRIVERS[version]
    told = hashlib.sha256(repr(driver).encode())
    for source in (*SOURCES, Path(__file__)):
        told.update(source.read_bytes())
    return kept(f"driver-{version}-{told.hexdigest()[:12]}", lambda folder: _fill(folder, driver))


def _fill(folder: Path, driver: Driver) -> None:
    for argv in _compilations(driver, folder):
        run(argv)


def _compilations(driver: Driver, folder: Path) -> Iterator[list[str]]:
    nvml, module = map(str, SOURCES)
    defined = [f'-DDRIVER_VERSION="{driver.version}"', f"-DCUDA_VERSION={driver.cuda}"]
    library = ["-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
    yield ["gcc", *library, *defined, "-o", str(folder / f"libnvidia-ml.so.{driver.version}"), nvml]
    for flavour, license_name in LICENSES.items():
        (folder / flavour).mkdir()
        for name in MODULES:
            defined = [f'-DNAME="{name}"', f'-DVERSION="{driver.version}"', f'-DLICENSE="{license_name}"']
            broken = [] if driver.loads else ["-DBROKEN"]
            yield ["gcc", "-c", "-fno-pic", *defined, *broken, "-o", str(folder / flavour / f"{name}.ko"), module]
