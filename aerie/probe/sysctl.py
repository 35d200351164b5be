"""Kernel settings under /proc/sys that a lock may set."""

from __future__ import annotations

import os
import stat

from .reading import join, names, text

__all__ = ["settings"]

FOLDERS = ("fs", "kernel", "net/core", "net/ipv4", "vm")  # not below them: a lock has no settings per network device
# Reading it makes the kernel sum up counters; and one that changes by itself.
NOT_READ = ("vm.stat_refresh", "kernel.ns_last_pid")


def settings(root: str = "/") -> dict[str, str]:
    """Every setting that can be read and written, by its dotted name; blanks between values become one space."""
    found = {}
    for folder in FOLDERS:
        path = join(root, f"/proc/sys/{folder}")
        for name in names(path):
            key, file = f"{folder}/{name}".replace("/", "."), os.path.join(path, name)
            mode = os.stat(file).st_mode
            if key in NOT_READ or not stat.S_ISREG(mode) or mode & 0o600 != 0o600:
                continue
            try:
                found[key] = " ".join(text(file).split())
            except OSError:
                continue  # some need a capability, some a device that is not there
    return found
