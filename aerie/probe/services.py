"""systemd's units, and whether the clock is set by the network."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .log import utc
from .machine import container
from .reading import Later, ProgramFailed, join, optional, program

__all__ = ["failed", "failed_units", "is_time_synchronized", "services", "show", "unit"]

NAMES = (
    "nvidia-persistenced", "nvidia-fabricmanager", "nvidia-powerd", "unattended-upgrades", "apt-daily",
    "apt-daily-upgrade", "systemd-timesyncd", "chrony", "ntp", "ntpsec", "ssh", "systemd-modules-load",
)  # fmt: skip
OURS = "aerie-*.service"
# Where unit files lie. systemd looks for one that is not there in all of them, which costs 3 ms a name.
FOLDERS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
GENERATED = ("/run/systemd/generator", "/run/systemd/generator.late", "/run/systemd/transient")
PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,ActiveEnterTimestamp"
SYNCHRONIZED_US = 16_000_000  # the kernel's own bound of the clock's error, which timedatectl judges by


def show() -> Later:
    """`systemctl show` of the units that layers care about and of aerie's own."""
    return program("systemctl", "show", "--timestamp=unix", f"--property={PROPERTIES}", *_present(), OURS)


def failed() -> Later:
    """The units that failed, as systemctl lists them."""
    return program("systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--full")


def services(said: Later, root: str = "/") -> dict[str, dict[str, Any]]:
    """The snapshot's Unit of every such unit that exists, by name without ".service"."""
    blocks = [block for block in _output(said, root).split("\n\n") if block.strip()]
    fields = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
    found = [unit(each) for each in fields if each.get("LoadState") not in (None, "not-found")]
    return {each["name"][: -len(".service")]: each for each in found}


def unit(fields: dict[str, str]) -> dict[str, Any]:
    """The snapshot's Unit of these properties."""
    since = fields.get("ActiveEnterTimestamp", "").lstrip("@")
    return {
        "name": fields.get("Id", ""),
        "active": fields.get("ActiveState", ""),
        "enabled": fields.get("UnitFileState", ""),
        "since": utc(float(since)) if since not in ("", "0", "n/a") else None,
    }


def failed_units(said: Later, root: str = "/") -> list[str]:
    """The names in systemctl's list."""
    return sorted(line.split()[0] for line in _output(said, root).splitlines() if line.strip())


def is_time_synchronized(root: str = "/") -> bool | None:
    """None in a container: the clock belongs to the machine around it."""
    if container(root):
        return None
    # struct timex on 64 bits: the modes, here 0 to change nothing, and four words later the greatest error in µs.
    library, clock = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(256)
    if library.adjtimex(clock) < 0:
        raise ProgramFailed(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return int.from_bytes(clock.raw[24:32], "little") < SYNCHRONIZED_US


def _present(root: str = "/") -> list[str]:
    folders = [join(root, path) for path in (*(f"{folder}/systemd/system" for folder in FOLDERS), *GENERATED)]
    files = (f"{name}.service" for name in NAMES)
    # A masked unit is a link to /dev/null, which counts.
    return [file for file in files if any(os.path.lexists(os.path.join(folder, file)) for folder in folders)]


def _output(said: Later, root: str) -> str:
    init = optional(join(root, "/proc/1/comm"))
    if init != "systemd":
        raise ProgramFailed(f"no systemd here: process 1 is {init}")
    return str(said.get())
