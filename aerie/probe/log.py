"""The kernel's log since boot: Xids of NVIDIA's driver, faults that the IOMMU reports."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from .reading import Later, ProgramFailed, join, optional, program

__all__ = ["entries", "faults", "from_journal", "from_kmsg", "search", "utc", "xids"]

XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, (?P<text>.*))?")
JOURNAL = ("journalctl", "--dmesg", "--boot", "--output=json", "--output-fields=MESSAGE", "--no-pager", "--quiet")
# The first line of every boot is wanted too: a journal without it does not tell that there was no fault.
WANTED = r"NVRM: Xid|IO_PAGE_FAULT|DMAR: \[|^Linux version "
FAULT = re.compile(r"IO_PAGE_FAULT|DMAR: \[.*\] .*fault addr")


def search() -> Later:
    """The journal's kernel messages of this boot that may matter, and its first."""
    # It ends with 1 when it finds none.
    return program(*JOURNAL, f"--grep={WANTED}", good=(0, 1))


def entries(found: Later, root: str = "/") -> list[tuple[float, str]]:
    """(Unix time, text) of lines among which those that matter are. Raises ProgramFailed where no log can be read."""
    try:
        # The kernel's own buffer forgets what is old, so the journal comes first.
        lines = list(from_journal(found.get()))
        reason = "the journal has no kernel messages from the boot on"
    except (ProgramFailed, TimeoutError) as error:
        lines, reason = [], str(error)
    if lines:
        return lines
    path = join(root, "/dev/kmsg")
    if not os.path.exists(path):
        raise ProgramFailed(f"no kernel log: {reason}, and there is no /dev/kmsg")
    booted = time.time() - float((optional(join(root, "/proc/uptime")) or "0").split()[0])
    return list(from_kmsg(_drain(path), booted))


def from_journal(document: str) -> Iterator[tuple[float, str]]:
    """The entries of `journalctl --output=json`."""
    for line in document.splitlines():
        try:
            entry = json.loads(line)
            message = entry["MESSAGE"]
            stamp = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):
            continue
        yield stamp, bytes(message).decode(errors="replace") if isinstance(message, list) else str(message)


def from_kmsg(document: str, booted: float) -> Iterator[tuple[float, str]]:
    """The entries of /dev/kmsg: "priority,number,microseconds since boot,flags;text"."""
    for line in document.splitlines():
        head, separator, message = line.partition(";")
        fields = head.split(",")
        if separator and len(fields) >= 3 and fields[2].isdigit():
            yield booted + int(fields[2]) / 1e6, message


def xids(lines: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """The snapshot's Xids among these entries."""
    found = []
    for stamp, line in lines:
        match = XID.search(line)
        if match:
            bus, code, words = match["bus"], int(match["code"]), (match["text"] or "").strip()
            # "0000:05:00": the log leaves out the function, which is 0.
            bus = bus if "." in bus else f"{bus}.0"
            found.append({"time": utc(stamp), "code": code, "bus_id": bus.lower(), "text": words})
    return found


def faults(lines: list[tuple[float, str]]) -> int:
    """How many of these entries say that a device reached for memory it may not have."""
    return sum(1 for _, line in lines if FAULT.search(line))


def utc(stamp: float) -> str:
    """ISO 8601 of a Unix time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stamp))


def _drain(path: str) -> str:
    """All that /dev/kmsg holds now; it gives one record per read and would wait for the next one at the end."""
    parts = []
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                part = os.read(handle, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten while we read: the next read goes on behind them
            if not part:
                break
            parts.append(part)
    finally:
        os.close(handle)
    return b"".join(parts).decode(errors="replace")
