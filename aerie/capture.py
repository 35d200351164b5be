"""A lock from what a host is: the way from a host that works to more of them."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import AerieError, UsageError
from .lock.files import SUFFIX, load
from .lock.model import (
    SCHEMA,
    Base,
    Cuda,
    CudaPackage,
    Driver,
    Engine,
    Extensions,
    Interconnect,
    Kernel,
    Lock,
    Python,
    PythonEnvironment,
    Repository,
    Storage,
    Weights,
)
from .lock.repositories import of_system
from .lock.toml import to_toml
from .paths import repository, shown
from .snapshot import Package, Snapshot, Unknown

__all__ = ["Captured", "capture", "of_host", "requirements", "write_new"]

if TYPE_CHECKING:
    from .inventory import Host

T = TypeVar("T")
# Words of the command line that are about GPUs; the rest (root=, console=) is a host's own.
WORDS = ("amd_iommu", "intel_iommu", "iommu", "nokaslr", "pci", "pcie_aspm", "pcie_port_pm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """notes: what the host did not tell, one sentence each, and where the value comes from instead."""

    lock: Lock
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file."""
        return to_toml(self.lock, self.notes)


@dataclass(slots=True)
class _Capture:
    snapshot: Snapshot
    like: Lock | None
    requirements: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def known(self, key: str, value: T | Unknown | None, otherwise: T) -> T:
        """The value where the host told it, else the other one with a note."""
        if value is None or isinstance(value, Unknown):
            reason = value.unknown if isinstance(value, Unknown) else "the host has none"
            source = f"lock {self.like.name}" if self.like else "default"
            self.notes.append(f"{key}: {reason}; taken from the {source}")
            return otherwise
        return value

    def packages(self) -> Mapping[str, Package]:
        """Those that are cleanly installed."""
        found = self.snapshot.base.packages
        if isinstance(found, Unknown):
            raise _cannot("packages", found.unknown, "dpkg's list", "Look why dpkg does not answer.")
        return {name: package for name, package in found.items() if package.status == "ii"}


def of_host(host: "Host", folder: Path, *, name: str = "", like: str = "") -> Captured:
    """The lock that the host matches, read from it in one round trip; changes nothing.

    name: of the lock, the host's unless given. like: name of a lock as `capture` takes it, the host's own unless given.
    Raises as `capture`, and as `remote.probe` for a host that cannot be read.
    """
    from . import remote

    known = like or host.lock
    found = load(known, folder) if known else None
    return capture(remote.probe(host), name or host.name, like=found, requirements=requirements())


def capture(
    snapshot: Snapshot, name: str, *, like: Lock | None = None, requirements: Mapping[str, str] | None = None
) -> Captured:
    """The lock `name` that this host matches. Pure.

    like: a lock that says what a host cannot tell (the repository's key, severities). requirements: path of a
    requirement file by its sha256. Raises AerieError for a host that is no example: driver or toolkit missing or in
    two versions.
    """
    host = _Capture(snapshot, like, requirements or {})
    lock = Lock(
        schema=SCHEMA,
        name=name,
        systems=(f"{snapshot.os.id}-{snapshot.os.version_id}",),
        arch=_arch(snapshot),
        base=_base(host),
        kernel=_kernel(host),
        driver=_driver(host),
        interconnect=_interconnect(host),
        cuda=_cuda(host),
        python=_python(host),
        extensions=like.extensions if like else Extensions(),
        storage=_storage(host),
        weights=like.weights if like else Weights(),
        engine=like.engine if like else Engine(),
        severity=like.severity if like else {},
    )
    return Captured(lock=lock, notes=tuple(host.notes))


def requirements(folder: Path | None = None) -> dict[str, str]:
    """sha256 -> path from the checkout, of the checkout's own requirement files."""
    files = sorted(((folder or repository()) / "requirements").glob("*.txt"))
    return {hashlib.sha256(file.read_bytes()).hexdigest(): shown(file) for file in files}


def write_new(captured: Captured, folder: Path) -> Path:
    """Write locks/<name>.lock.toml in the inventory's folder. Raises UsageError where there is one already."""
    file = folder / "locks" / f"{captured.lock.name}{SUFFIX}"
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(file, "x", encoding="utf-8") as new:
            new.write(captured.text)
    except FileExistsError as error:
        seen, remedy = f"{shown(file)}, which exists", "A lock is never overwritten."
        raise UsageError("--name", seen=seen, expected="a new name", remedy=remedy) from error
    return file


def _cannot(where: str, seen: object, expected: str, remedy: str) -> AerieError:
    return AerieError(f"lock.capture: {where}", seen=seen, expected=expected, remedy=remedy)


def _arch(snapshot: Snapshot) -> Any:
    if snapshot.machine.arch not in ("x86_64", "aarch64"):
        raise _cannot("arch", snapshot.machine.arch, "x86_64 or aarch64", "There is no lock for it.")
    return snapshot.machine.arch


def _base(host: _Capture) -> Base:
    base, seen = host.like.base if host.like else Base(), host.snapshot.base
    update: dict[str, Any] = {"sysctl": {key: seen.sysctl.get(key, value) for key, value in base.sysctl.items()}}
    limits = host.known("base.memlock, nofile, stack", seen.session_limits, None)
    if limits is not None:
        for key in ("memlock", "nofile", "stack"):
            value = getattr(limits, key)
            update[key] = -1 if value is None else value
    if seen.governors and len(seen.governors) == 1:
        update["governor"] = seen.governors[0]
    update["time_synchronized"] = host.known(
        "base.time_synchronized", seen.is_time_synchronized, base.time_synchronized
    )
    return base.model_copy(update=update)


def _kernel(host: _Capture) -> Kernel:
    seen = host.snapshot.kernel
    series = ".".join(seen.release.split(".")[:2])
    cmdline = tuple(word for word in seen.cmdline.split() if word.partition("=")[0] in WORDS)
    blacklist = (host.like.kernel if host.like else Kernel()).blacklist
    image, headers = (_meta(host, kind, series) for kind in ("image", "headers"))
    return Kernel(series=(series,), image=image, headers=headers, cmdline=cmdline, blacklist=blacklist)


def _meta(host: _Capture, kind: str, series: str) -> str:
    # linux-image-generic is one, linux-image-6.8.0-88-generic is not; of several the one of the running series.
    names = [
        name
        for name, package in host.packages().items()
        if re.match(rf"linux-{kind}-[a-z]", name) and package.version.startswith(f"{series}.")
    ]
    return min(names, key=lambda name: (len(name), name), default="")


def _driver(host: _Capture) -> Driver:
    seen, like = host.snapshot.driver, host.like.driver if host.like else None
    places = {"loaded": seen.loaded_version, "library": seen.library_version}
    versions = {version for version in places.values() if isinstance(version, str)}
    if len(versions) != 1 or seen.loaded_flavour not in ("open", "closed"):
        words = ", ".join(f"{place} {version}" for place, version in places.items())
        raise _cannot("driver", words, "one driver, loaded", "Provision and verify the host first.")
    gpus = () if isinstance(host.snapshot.gpus, Unknown) else host.snapshot.gpus
    return Driver(
        version=versions.pop(),
        flavour="open" if seen.loaded_flavour == "open" else "closed",
        repository=_repository(host),
        uvm_disable_hmm=host.known("driver.uvm_disable_hmm", seen.uvm_disable_hmm, not like or like.uvm_disable_hmm),
        persistence=bool(gpus) and all(gpu.persistence is True for gpu in gpus),
    )


def _repository(host: _Capture) -> Repository:
    system = f"{host.snapshot.os.id}-{host.snapshot.os.version_id}"
    if host.like and system in host.like.systems:
        return host.like.driver.repository
    if tree := of_system(system, host.snapshot.machine.arch):
        return tree.repository
    raise _cannot(
        "driver.repository", system, "a system whose repository's key is known", "Give a lock that has it: --like LOCK."
    )


def _interconnect(host: _Capture) -> Interconnect:
    seen, like = host.snapshot.interconnect, host.like.interconnect if host.like else Interconnect()
    gpus = () if isinstance(host.snapshot.gpus, Unknown) else host.snapshot.gpus
    widths = [gpu.link_width for gpu in gpus if isinstance(gpu.link_width, int)]
    generations = [gpu.link_gen_max for gpu in gpus if isinstance(gpu.link_gen_max, int)]
    pairs = host.known("interconnect.p2p", seen.p2p, {})
    iommu = host.known("interconnect.iommu", seen.iommu, like.iommu[0])
    return Interconnect.model_validate(
        {
            "iommu": (iommu,),
            "acs": "any" if host.known("interconnect.acs", seen.acs, ()) else "cleared",
            "link_width": min(widths, default=like.link_width),
            "link_gen": min(generations, default=like.link_gen),
            "p2p": all(word == "ok" for word in pairs.values()) if pairs else like.p2p,
        }
    )


def _cuda(host: _Capture) -> Cuda:
    seen, like = host.snapshot.cuda, host.like.cuda if host.like else None
    toolkit = next((one for one in seen.toolkits if one.path == seen.default_path), None)
    if toolkit is None or toolkit.version is None or toolkit.nvcc is None:
        if like is None:
            remedy = "Provision the host first, or take CUDA from a lock: --like LOCK."
            raise _cannot("cuda", "no toolkit with a compiler at /usr/local/cuda", "one", remedy)
        return host.known("cuda", None, like)
    suffix = "-" + "-".join(toolkit.version.split(".")[:2])
    found = {name: package.version for name, package in host.packages().items() if name.endswith(suffix)}
    if not found:
        raise _cannot("cuda.packages", f"no package ends with {suffix}", "the toolkit from apt", "Provision the host.")
    same = like is not None and like.release == toolkit.version
    driver = host.snapshot.driver.loaded_version or ""
    return Cuda(
        release=toolkit.version,
        nvcc=toolkit.nvcc,
        min_driver=like.min_driver if like and same else driver,
        path=toolkit.path,
        packages=tuple(CudaPackage(name=name, version=version) for name, version in sorted(found.items())),
    )


def _python(host: _Capture) -> Python:
    seen = host.snapshot.python
    environments = []
    for name, environment in sorted(seen.environments.items()):
        sha256 = environment.requirements_sha256
        if isinstance(sha256, Unknown) or sha256 not in host.requirements:
            reason = sha256.unknown if isinstance(sha256, Unknown) else f"no file of requirements/ has sha256 {sha256}"
            host.notes.append(f"python.environments: {name} left out, {reason}")
        else:
            path = host.requirements[sha256]
            environments.append(PythonEnvironment(name=name, requirements=path, sha256=sha256))
    return Python(version=".".join(seen.system.split(".")[:2]), environments=tuple(environments))


def _storage(host: _Capture) -> Storage:
    storage, mounts = host.like.storage if host.like else Storage(), host.snapshot.storage.filesystems
    under = [point for point in mounts if Path(storage.path).is_relative_to(point)]
    disk = mounts[max(under, key=len)] if under else None
    if disk is None or isinstance(disk, Unknown):
        return host.known("storage", disk, storage)
    update: dict[str, Any] = {}
    if disk.readahead_kib is not None:
        update["readahead_kib"] = disk.readahead_kib
    if disk.scheduler is not None:
        update["scheduler"] = disk.scheduler
    if disk.type in ("ext4", "xfs"):
        update["filesystem"] = disk.type
    return storage.model_copy(update=update)
