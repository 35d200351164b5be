"""What the probe could not read although the judgement needs it: one finding that lists it all."""

from collections.abc import Collection, Iterator

from aerie.snapshot import Gpu, Unknown

from . import storage
from .case import Case
from .model import Finding

__all__ = ["judge"]

# Facts of a GPU that nothing is judged by.
FREE = ("link_gen", "replays", "gsp_version", "numa_node", "temperature_c", "utilization_percent", "processes")
# While one of these holds, what the driver cannot tell is no question of its own.
NO_DRIVER = (
    "driver.not-installed", "driver.not-loaded", "driver.version-mismatch", "driver.closed-module", "driver.runfile",
    "driver.nvml-failed", "kernel.nouveau-loaded",
)  # fmt: skip
SHOWN = 12


def judge(case: Case, found: Collection[str]) -> Iterator[Finding]:
    """base.unknown, or nothing. found: ids of all other findings."""
    facts = [*_host(case), *(_gpus(case, found) if case.has_gpus else ())]
    unread = {path: value.unknown for path, value in facts if isinstance(value, Unknown)}
    if not unread:
        return
    by_reason: dict[str, list[str]] = {}
    for path, reason in unread.items():
        by_reason.setdefault(reason, []).append(path)
    seen = "; ".join(f"{_several(paths)} ({reason})" for reason, paths in by_reason.items())
    how = "" if case.snapshot.is_root else " The probe ran without root: let the inventory's user use sudo."
    yield case.finding("base.unknown", seen=seen, expected=f"all of {len(unread)} facts read", how=how)


def _host(case: Case) -> Iterator[tuple[str, object]]:
    snapshot, lock = case.snapshot, case.lock
    base, kernel, engine = snapshot.base, snapshot.kernel, snapshot.engine
    names = ["packages", "broken_packages", "apt_sources", "apt_key_fingerprints", "unattended", "needrestart"]
    names += ["session_limits", "failed_units"]
    names += ["is_time_synchronized"] if lock.base.time_synchronized else []
    for name in names:
        yield f"base.{name}", getattr(base, name)
    for source in base.apt_sources if not isinstance(base.apt_sources, Unknown) else ():
        yield f"base.apt_sources[{source.uri}].fingerprints", source.fingerprints
    for key in sorted(lock.base.sysctl.keys() - base.sysctl.keys()):
        yield f"base.sysctl[{key}]", Unknown(unknown="not among what is read")
    if lock.kernel.series or case.has_gpus:
        yield "kernel.next_release", kernel.next_release
    if lock.kernel.cmdline:
        yield "kernel.next_cmdline", kernel.next_cmdline
    wanted = {one.name for one in lock.python.environments}
    for name, environment in snapshot.python.environments.items():
        if name in wanted:
            yield f"python.environments.{name}", environment.requirements_sha256
    yield f"folder {lock.storage.path}", storage.has_path(case)
    yield f"file system of {lock.storage.path}", storage.below(case)
    for target, model in snapshot.weights.staged.items():
        yield f"weights.staged[{target}]", model
    yield "engine.listening", engine.listening
    yield "engine.units", engine.units


def _gpus(case: Case, found: Collection[str]) -> Iterator[tuple[str, object]]:
    snapshot = case.snapshot
    kernel, driver, interconnect = snapshot.kernel, snapshot.driver, snapshot.interconnect
    yield "kernel.secure_boot", kernel.secure_boot
    if kernel.secure_boot is True:
        yield "kernel.is_signing_key_enrolled", kernel.is_signing_key_enrolled
    yield "pci_gpus", snapshot.pci_gpus
    yield "xids", snapshot.xids
    for name in ("iommu", "acs", "io_page_faults"):
        yield f"interconnect.{name}", getattr(interconnect, name)
    if "driver.not-installed" not in found and "driver.runfile" not in found:
        for name in ("library_version", "modules", "dkms", "initramfs_version"):
            yield f"driver.{name}", getattr(driver, name)
    if any(one in found for one in NO_DRIVER):
        return
    yield "interconnect.p2p", interconnect.p2p
    if isinstance(snapshot.gpus, Unknown):
        yield "gpus", snapshot.gpus
        return
    for gpu in snapshot.gpus:
        if gpu.error is None:
            for name in Gpu.__dataclass_fields__:
                if name not in FREE:
                    yield f"gpus[{gpu.index}].{name}", getattr(gpu, name)


def _several(paths: list[str]) -> str:
    return ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")
