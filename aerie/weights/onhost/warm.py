"""Warming: what of a model is not in the page cache is read into it, file by file, by several sequential readers.

22 s or 25 minutes for the same load is this: a lazily mapped cold file comes in at 0.4 GB/s for one thread, a warm one
at the speed of memory. Standard library only, for this runs on the hosts.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aerie.errors import AerieError

from . import residency

__all__ = ["HEADROOM", "WARM_SHARE", "Mode", "Warmed", "memory_bytes", "warm", "why_not"]

HEADROOM = 1.15  # memory for each byte of weights: below it the last files push out the first
WARM_SHARE = 0.98  # resident of all: the kernel may take a few pages back at any time
READERS = 8  # a RAID of NVMe wants several streams; more than this queue at the disks
_CHUNK = 16 << 20

Mode = Literal["auto", "yes", "no"]
"""auto: where memory suffices; yes: anyway; no: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What warming found and did. state: "warm" (WARM_SHARE or more is resident), "partly", or "skipped"."""

    state: Literal["warm", "partly", "skipped"]
    reason: str  # why it was skipped, or is not warm; "" when warm
    size_bytes: int
    resident_bytes: int  # after it
    read_bytes: int  # of files that were not wholly resident
    seconds: float


def why_not(mode: Mode, size_bytes: int, memory: int) -> str | None:
    """The reason not to warm `size_bytes` on a host with `memory` bytes; None: warm."""
    if mode == "no":
        return "not wanted"
    needed = int(HEADROOM * size_bytes)
    if mode == "auto" and memory < needed:
        return f"{memory / 2**30:.1f} GiB of memory, {needed / 2**30:.1f} GiB needed: {HEADROOM} × the weights"
    return None


def warm(
    root: Path, files: Mapping[str, int], *, mode: Mode = "auto", progress: Callable[[int], None] | None = None
) -> Warmed:
    """Read what is missing of the files below `root` (path and size) into the page cache, and measure it.

    progress: called about twice a second with the resident bytes so far, from this thread; what it raises ends the
    readers and comes out. Raises AerieError for a file that cannot be read.
    """
    began, size = time.monotonic(), sum(files.values())
    before = residency.measure(root, files)
    if (reason := why_not(mode, size, memory_bytes())) is not None:
        resident = sum(before.values())
        return Warmed(
            state="skipped", reason=reason, size_bytes=size, resident_bytes=resident, read_bytes=0, seconds=0.0
        )
    cold = sorted((path for path, length in files.items() if before[path] < length), key=lambda path: -files[path])
    _read_all([root / path for path in cold], sum(before[path] for path in files if path not in cold), progress)
    resident = sum(residency.measure(root, files).values())
    is_warm = resident >= WARM_SHARE * size
    return Warmed(
        state="warm" if is_warm else "partly",
        reason="" if is_warm else f"the kernel kept {resident} of {size} bytes: something else wants the memory",
        size_bytes=size,
        resident_bytes=resident,
        read_bytes=sum(files[path] for path in cold),
        seconds=time.monotonic() - began,
    )


def memory_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/proc/self/cgroup")) -> int:
    """The memory that this process may fill with cached files: the host's, or less by a limit of its control groups.

    Pages belong to the group that reads them first, so a limit there is a limit of what can be warmed from here.
    """
    total = next(int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines() if line.startswith("MemTotal"))
    name = next((line[3:] for line in _lines(cgroup) if line.startswith("0::")), "/")
    group = Path("/sys/fs/cgroup") / name.strip("/")
    limits = [text for folder in (group, *group.parents) for text in _lines(folder / "memory.max")]
    return min(total, *(int(text) for text in limits if text.isdigit()), total)


def _read_all(paths: list[Path], resident: int, progress: Callable[[int], None] | None) -> None:
    done = [0] * len(paths)
    ended = threading.Event()

    def read(index: int) -> None:
        buffer = memoryview(bytearray(_CHUNK))
        with open(paths[index], "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while not ended.is_set() and (count := file.readinto(buffer)):
                done[index] += count

    with ThreadPoolExecutor(READERS, "warm") as pool:  # reading lets go of the interpreter's lock
        readers = [pool.submit(read, index) for index in range(len(paths))]
        waiting = set(readers)
        try:
            while waiting:
                waiting = wait(waiting, timeout=0.5).not_done
                if progress is not None:
                    progress(resident + sum(done))
        finally:
            ended.set()
    for path, reader in zip(paths, readers, strict=True):
        error = reader.exception()
        if isinstance(error, OSError):
            raise AerieError(
                str(path),
                seen=error.strerror or str(error),
                expected="a readable file",
                remedy="See the kernel's log for errors of the disk, then check every file: ./invoke stage --deep.",
            ) from error
        if error is not None:
            raise error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
