"""The load gate: whether weights came in as they should, and if not, why: cold files, a fault storm, or neither.

Judging is pure. `Watch` counts what a process tree reads from disk and how often it waits for a page, by /proc.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aerie.engines.guard import descendants

__all__ = ["FLOOR_GB_S", "Counters", "Kind", "Load", "Verdict", "Watch", "judge", "seconds_in_log"]

FLOOR_GB_S = 5.0  # 547 GB in 110 s; a warm cache or a RAID read by several readers gives 3 to 9 times that
SMALLEST_BYTES = 1 << 30  # a smaller load is start-up, not reading
FROM_DISK = 0.1  # of the size: below it the files were in the page cache
# Bytes that come in by one major fault. Measured on ext4, read-ahead 8 MiB: 4 KiB where reads were random, 5 MiB and
# more where the kernel could read ahead. Its usual read-ahead is 128 KiB.
STORM_BYTES = 256 << 10

Kind = Literal["warm", "streamed", "small", "cold", "storm", "slow", "unknown"]
"""Good: warm (from the page cache), streamed (from disk, fast enough), small. Bad: cold, storm, slow (neither disk nor
faults: the processor, or the way to the GPU). unknown: the engine did not say how long it loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a process tree did so far. None: /proc did not tell."""

    major_faults: int
    read_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One loading of weights. seconds: None where nobody measured them; resident_bytes: before it began."""

    size_bytes: int
    seconds: float | None
    major_faults: int
    read_bytes: int | None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """rate_gb_s: 10⁹ bytes of weights a second, None where it is not known. reason: with figures, for a person."""

    kind: Kind
    is_good: bool
    rate_gb_s: float | None
    reason: str


def judge(load: Load, floor_gb_s: float = FLOOR_GB_S) -> Verdict:
    """What kind of load it was; good is one of at least `floor_gb_s`, from wherever the bytes came."""
    if load.seconds is None:
        return Verdict(kind="unknown", is_good=True, rate_gb_s=None, reason="the engine did not say how long it loaded")
    rate = load.size_bytes / max(load.seconds, 1e-9) / 1e9
    what = f"{load.size_bytes / 1e9:.1f} GB in {load.seconds:.1f} s, {rate:.2f} GB/s"
    if load.size_bytes < SMALLEST_BYTES:
        return Verdict(kind="small", is_good=True, rate_gb_s=rate, reason=f"{what}: too little to judge")
    kind = _kind(load, rate >= floor_gb_s)
    return Verdict(
        kind=kind, is_good=rate >= floor_gb_s, rate_gb_s=rate, reason=f"{what}: {_because(kind, load, floor_gb_s)}"
    )


def _kind(load: Load, is_fast: bool) -> Kind:
    read = load.read_bytes or 0
    if is_fast:
        return "streamed" if read >= FROM_DISK * load.size_bytes else "warm"
    # Some file systems (FUSE) count no bytes for a fault: the faults alone then tell.
    if load.major_faults * STORM_BYTES >= max(read, int(FROM_DISK * load.size_bytes)):
        return "storm"
    return "cold" if read >= FROM_DISK * load.size_bytes else "slow"


def _because(kind: Kind, load: Load, floor_gb_s: float) -> str:
    read = "an unknown amount" if load.read_bytes is None else f"{load.read_bytes / 1e9:.1f} GB"
    before = ""
    if load.resident_bytes is not None:
        before = f", {load.resident_bytes / load.size_bytes:.0%} in the page cache before it"
    counted = f"{read} from disk, {load.major_faults} major faults{before}"
    if kind in ("warm", "streamed"):
        return counted
    expected = f"expected at least {floor_gb_s:g} GB/s"
    if kind == "storm":
        again = ""
        if load.read_bytes is not None and load.read_bytes > 1.5 * load.size_bytes:
            again = "; pages were read again and again, the memory is too small"
        return f"a fault storm, {counted}{again}; {expected}. Warm the files first, or load by direct reads."
    if kind == "cold":
        return f"a cold load, {counted}; {expected}. Warm the files first, or load by direct reads."
    return f"not the disk, {counted}; {expected}. Look at processor time, PCIe links and the loader's threads."


class Watch:
    """Counts for the tree below the process `root`, itself included, from now on; sample while the root lives.

    A process that ended counts too once its parent has taken note of it: the kernel adds its figures to the parent's.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self._first = self._last = _tree(root)

    def sample(self) -> None:
        """Read /proc once more."""
        now = _tree(self.root)
        if now.major_faults >= self._last.major_faults:  # else one has ended, and its parent has yet to take note
            self._last = now

    def total(self) -> Counters:
        """Major faults and bytes from disk up to the last sample; bytes are None if any process hides its own."""
        first, last = self._first, self._last
        is_known = first.read_bytes is not None and last.read_bytes is not None
        return Counters(
            major_faults=last.major_faults - first.major_faults,
            read_bytes=(last.read_bytes or 0) - (first.read_bytes or 0) if is_known else None,
        )


def seconds_in_log(text: str) -> float | None:
    """How long the engine's log says that loading took; the slowest of several, None when it says nothing.

    vLLM 0.32 and SGLang 0.5. A clock that was set meanwhile makes nonsense: more than a day is taken for that.
    """
    found = re.findall(r"Loading weights took ([\d.]+) seconds|Load weight end\. elapsed=([\d.]+) s", text)
    seconds = [float(vllm or sglang) for vllm, sglang in found]
    return max((value for value in seconds if value < 86_400), default=None)


def _tree(root: int) -> Counters:
    """Of the live processes, each with its children that ended."""
    faults, read = 0, []
    for pid in (root, *descendants(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        faults += int(fields[9]) + int(fields[10])  # majflt and cmajflt of proc(5); two fields are cut off above
        read.append(_read_bytes(pid))
    known = [count for count in read if count is not None]
    return Counters(major_faults=faults, read_bytes=sum(known) if len(known) == len(read) else None)


def _read_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
