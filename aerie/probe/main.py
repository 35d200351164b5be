"""The whole probe: starts what takes time at once, reads files meanwhile, and prints one JSON document."""

from __future__ import annotations

import json
import os
import pwd
import sys
import time
from typing import Any, Callable

from . import (
    apt,
    cuda,
    dpkg,
    driver,
    engine,
    environments,
    extensions,
    initramfs,
    kernel,
    log,
    machine,
    nvml,
    pci,
    processes,
    services,
    storage,
    sysctl,
    weights,
)
from .reading import Later, is_root, optional, program, reading

__all__ = ["document", "main"]

SCHEMA = "aerie.snapshot/1"
NVML_S = 30.0  # a GPU that fell off the bus can hold the driver for long
ACCOUNT = "aerie"
# Serves weights to the other hosts of a staging, on the network and to them alone: no engine.
WEIGHTS = ("aerie-seeder.service",)
RECEIPT = "/var/lib/aerie/receipt.json"


def main() -> None:
    """Print the snapshot. Arguments: PATH, then locked memory, files and stack as `ulimit -S` has them in a session."""
    sys.stdout.write(json.dumps(document(sys.argv[1:]), separators=(",", ":")) + "\n")
    sys.stdout.flush()
    # A thread that hangs in the kernel, on a lost GPU or a file server that is gone, must not hold the answer back.
    os._exit(0)


def document(arguments: list[str]) -> dict[str, Any]:
    """The snapshot as JSON types."""
    started = time.monotonic()
    cards = Later(nvml.read)
    units, failed = services.show(), services.failed()
    messages, linker = log.search(), program("ldconfig", "-p")
    rows = reading(dpkg.rows)
    kernels = kernel.kernel()
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "taken_at": log.utc(time.time()),
        "is_root": is_root(),
        "machine": machine.machine(),
        "os": machine.system(),
        "base": _base(rows, failed, arguments[1:]),
        "kernel": kernels,
        "driver": _driver(rows, kernels["next_release"]),
        "pci_gpus": reading(pci.gpus),
        "services": reading(services.services, units),
        "cuda": cuda.cuda(arguments[0] if arguments else os.environ.get("PATH", ""), linker),
        "python": environments.python(),
        "extensions": extensions.extensions(),
        "storage": {"filesystems": storage.filesystems(), "folders": storage.folders()},
        "weights": weights.weights(),
        "receipt": reading(_receipt),
    }
    found["engine"] = _engine(found["services"])
    lines = reading(log.entries, messages)
    found["xids"] = _of(lines, log.xids)
    found["interconnect"] = {
        "iommu": reading(pci.iommu),
        "acs": reading(pci.acs),
        "io_page_faults": _of(lines, log.faults),
    }
    _add_nvml(found, reading(cards.get, NVML_S))
    return {**found, "probe_s": round(time.monotonic() - started, 3)}


def _base(rows: Any, failed: Later, limits: list[str]) -> dict[str, Any]:
    root = os.statvfs("/")
    pending = optional("/run/reboot-required.pkgs")
    if pending is None:
        pending = "(not named)" if os.path.exists("/run/reboot-required") else ""
    return {
        "packages": _of(rows, dpkg.installed),
        "broken_packages": _of(rows, dpkg.broken),
        "apt_lock_holder": reading(dpkg.lock_holder),
        "apt_sources": reading(apt.sources),
        "apt_key_fingerprints": reading(apt.keys),
        "unattended": _of(rows, lambda packages: reading(apt.unattended, packages)),
        "needrestart": reading(apt.needrestart),
        "sysctl": sysctl.settings(),
        "session_limits": reading(_limits, limits),
        "governors": machine.governors(),
        "is_time_synchronized": reading(services.is_time_synchronized),
        "failed_units": reading(services.failed_units, failed),
        "root_free_bytes": root.f_bavail * root.f_frsize,
        "reboot_required_by": sorted(set(pending.splitlines())),
    }


def _driver(rows: Any, next_release: Any) -> dict[str, Any]:
    version, flavour = driver.loaded(optional("/proc/driver/nvidia/version") or "")
    return {
        "loaded_version": version,
        "loaded_flavour": flavour,
        "modules": reading(driver.modules),
        "dkms": reading(driver.dkms),
        "initramfs_version": reading(initramfs.version, next_release),
        "runfile": driver.runfile({} if _is_unknown(rows) else rows),
        "uvm_disable_hmm": driver.uvm_disable_hmm(),
        "modprobe_options": driver.options(kernel.modprobe_lines()),
        "pin_files": apt.pin_files(),
    }


def _add_nvml(found: dict[str, Any], said: dict[str, Any]) -> None:
    if _is_unknown(said):
        missing = ("library_version", "cuda_version", "gpus", "p2p", "topology")
        said = {**dict.fromkeys(missing, said), "error": f"no answer ({said['unknown']})"}
    found["gpus"] = said["gpus"]
    found["driver"]["nvml_error"] = said["error"]
    for key in ("library_version", "cuda_version"):
        found["driver"][key] = said[key]
    for key in ("p2p", "topology"):
        found["interconnect"][key] = said[key]


def _engine(units: Any) -> dict[str, Any]:
    try:
        account = pwd.getpwnam(ACCOUNT)
    except KeyError:
        account = None
    ours = _of(units, lambda known: [unit for _, unit in sorted(known.items()) if unit["name"].startswith("aerie-")])
    return {
        "user": account and account.pw_name,
        "user_shell": account and account.pw_shell,
        "units": ours,
        "listening": _of(ours, lambda units: reading(_listening, units)),
        "services": reading(engine.services),
    }


def _listening(units: list[dict[str, Any]]) -> list[str]:
    # Looking at every process takes some milliseconds that a host without engines need not spend.
    is_running = any(unit["active"] == "active" and unit["name"] not in WEIGHTS for unit in units)
    pids = processes.pids_by_unit("aerie-") if is_running else {}
    return processes.listening(pid for pid, unit in pids.items() if unit not in WEIGHTS)


def _limits(words: list[str]) -> dict[str, int | None]:
    """`ulimit` counts locked memory and stack in KiB."""
    if len(words) != 3:
        raise ValueError("the session's limits were not passed on")
    locked, files, stack = (None if word == "unlimited" else int(word) for word in words)
    return {
        "memlock": None if locked is None else locked * 1024,
        "nofile": files,
        "stack": None if stack is None else stack * 1024,
    }


def _receipt() -> dict[str, Any] | None:
    document = optional(RECEIPT)
    if document is None:
        return None
    fields = json.loads(document)
    return {key: fields[key] for key in ("lock", "lock_sha256", "applied_at", "previous_lock", "layers")}


def _of(value: Any, take: Callable[[Any], Any]) -> Any:
    """What `take` makes of a value that was read; one that could not be read stays unknown."""
    return value if _is_unknown(value) else take(value)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"unknown"} and isinstance(value["unknown"], str)
