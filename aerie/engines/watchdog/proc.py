"""Processes of the service as /proc tells."""

import re
from collections.abc import Iterable
from pathlib import Path

from aerie.engines.watchdog.observation import Process

__all__ = ["process", "processes", "started"]

PAGE = 4096
# vLLM names its workers VLLM::Worker_TP3, SGLang sglang::scheduler_TP3 (with _DP, _EP before or behind).
RANK = re.compile(r"(?:^|[_:])TP(\d+)")


def processes(pids: Iterable[int], root: Path = Path("/proc")) -> tuple[Process, ...]:
    """Those that are there still, zombies too."""
    return tuple(one for pid in pids if (one := process(pid, root)) is not None)


def started(pid: int, root: Path = Path("/proc")) -> int | None:
    """When it started, in ticks since the boot; None where it has ended."""
    fields = _read(root / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[19]) if fields else None


def process(pid: int, root: Path = Path("/proc")) -> Process | None:
    """One of them; None where it has ended."""
    folder = root / str(pid)
    try:
        told = (folder / "stat").read_text()
    except OSError:
        return None
    name, after = told.partition("(")[2].rpartition(")")[::2]
    fields = after.split()
    title = _read(folder / "cmdline").replace("\0", " ").strip() or name
    first = title.split(" ")[0]
    io = dict(re.findall(r"^(\w+): (\d+)$", _read(folder / "io"), re.MULTILINE))
    return Process(
        pid=pid,
        name=title[:80],
        state=fields[0],
        rank=first if RANK.search(first) else "",
        progressed=int(io.get("rchar", 0)) + int(io.get("wchar", 0)) + int(io.get("read_bytes", 0)),
        resident_bytes=int(fields[21]) * PAGE,
        waits_in=_read(folder / "wchan").strip("0"),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
