"""The machine and its operating system."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from .reading import join, names, optional, reading, text

__all__ = ["container", "machine", "os_release", "python_version", "system"]


def machine(root: str = "/") -> dict[str, Any]:
    """The snapshot's `machine`."""
    return {
        "hostname": os.uname().nodename,
        "machine_id": reading(_line, join(root, "/etc/machine-id")),
        "boot_id": reading(_line, join(root, "/proc/sys/kernel/random/boot_id")),
        "uptime_s": float(text(join(root, "/proc/uptime")).split()[0]),
        "arch": os.uname().machine,
        "cpus": os.cpu_count() or 1,
        "memory_bytes": _memory(text(join(root, "/proc/meminfo"))),
        "shm_bytes": reading(_size, join(root, "/dev/shm")),
        "container": container(root),
        "init": optional(join(root, "/proc/1/comm")) or "",
    }


def container(root: str = "/") -> str | None:
    """What kind of container this is, in systemd-detect-virt's words; None on a real or virtual machine."""
    # systemd notes it at boot; without systemd the managers leave marks of their own.
    told = optional(join(root, "/run/systemd/container")) or optional(join(root, "/run/host/container-manager"))
    if told:
        return told
    for mark, word in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if os.path.exists(join(root, mark)):
            return word
    try:
        variables = text(join(root, "/proc/1/environ")).split("\0")
    except OSError:
        variables = []
    named = next((entry[len("container=") :] for entry in variables if entry.startswith("container=")), None)
    if named is None and "KUBERNETES_SERVICE_HOST" in {entry.partition("=")[0] for entry in variables}:
        named = "container-other"
    return named


def system(root: str = "/") -> dict[str, Any]:
    """The snapshot's `os`."""
    fields = os_release(optional(join(root, "/etc/os-release")) or optional(join(root, "/usr/lib/os-release")) or "")
    return {
        "id": fields.get("ID", ""),
        "version_id": fields.get("VERSION_ID", ""),
        "codename": fields.get("VERSION_CODENAME", ""),
        "python": python_version(),
    }


def python_version() -> str:
    """Of the interpreter that runs this, "3.12.3"."""
    return ".".join(map(str, sys.version_info[:3]))


def os_release(document: str) -> dict[str, str]:
    """The assignments of an os-release file."""
    pairs = (line.partition("=") for line in document.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): "".join(shlex.split(value)) for key, _, value in pairs}


def governors(root: str = "/") -> list[str] | None:
    """The distinct frequency governors of the processors; None where the machine offers no choice."""
    folder = join(root, "/sys/devices/system/cpu/cpufreq")
    found = {optional(os.path.join(folder, name, "scaling_governor")) for name in names(folder)}
    return sorted(governor for governor in found if governor) or None


def _line(path: str) -> str:
    return text(path).strip()


def _memory(meminfo: str) -> int:
    total = next(line for line in meminfo.splitlines() if line.startswith("MemTotal:"))
    return int(total.split()[1]) * 1024


def _size(path: str) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
