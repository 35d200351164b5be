"""How far a staging is: the numbers behind progress.json, and the lines of events.jsonl."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aerie.runbook.step import write_atomic

__all__ = ["Active", "Ledger"]

INTERVAL_S: Final = 1.0
_WINDOW_S: Final = 20.0  # of the rates: shorter ones jump when a file ends


@dataclass(slots=True)
class _Rate:
    """Bytes per second over the last few seconds."""

    points: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, value: int) -> float:
        self.points.append((now, value))
        while len(self.points) > 2 and now - self.points[0][0] > _WINDOW_S:
            self.points.popleft()
        (first, low), (last, high) = self.points[0], self.points[-1]
        return max(0.0, (high - low) / (last - first)) if last > first else 0.0


@dataclass(slots=True)
class Active:
    """A file that moves. stage: fetching or verifying."""

    path: str
    size: int
    source: str
    attempt: int
    bytes: int = 0
    stage: str = "fetching"
    rate: _Rate = field(default_factory=_Rate)


class Ledger:
    """The account of one staging in a job's folder. Times of day are only shown; rates use the monotonic clock."""

    def __init__(self, folder: Path, *, total_bytes: int, total_files: int) -> None:
        self._folder = folder
        self._total = {"bytes": total_bytes, "files": total_files}
        self._began = time.monotonic()
        self._rate = _Rate()
        self.state = "preflight"
        self.message = ""
        self.active: dict[str, Active] = {}
        self.bytes: dict[str, int] = {}  # on the disk, by path
        self.verified: dict[str, int] = {}
        self.resident_bytes: int | None = None
        self.fetched: dict[str, int] = {}  # in this staging, by source
        self.retries = 0

    @contextmanager
    def moving(self, active: Active) -> Iterator[None]:
        """Show a file among the active ones meanwhile; its bytes stay counted."""
        self.active[active.path] = active
        try:
            yield
        finally:
            del self.active[active.path]
            self.bytes[active.path] = min(active.bytes, active.size)

    def arrived(self, source: str, count: int) -> None:
        """Count bytes that a source gave."""
        self.fetched[source] = self.fetched.get(source, 0) + max(0, count)

    @property
    def seconds(self) -> float:
        """Since the staging began."""
        return time.monotonic() - self._began

    def document(self) -> dict[str, Any]:
        """The progress as it is now. "at" comes first: a supervisor compares what follows it to find a hang."""
        now = time.monotonic()
        moving = {one.path: min(one.bytes, one.size) for one in self.active.values()}
        on_disk = sum({**self.bytes, **moving}.values())
        rate = self._rate.add(now, on_disk)
        left = self._total["bytes"] - on_disk
        return {
            "at": _now(),
            "schema": "aerie.staging-progress/1",
            "state": self.state,
            "bytes": {
                "total": self._total["bytes"],
                "on_disk": on_disk,
                "verified": sum(self.verified.values()),
                "resident": self.resident_bytes,
            },
            "rate_bytes_s": round(rate),
            "eta_s": round(left / rate) if left > 0 and rate > 0 else (0 if left <= 0 else None),
            "files": {"total": self._total["files"], "verified": len(self.verified)},
            "active": [
                {
                    "path": one.path, "bytes": one.bytes, "size": one.size, "source": one.source,
                    "rate_bytes_s": round(one.rate.add(now, one.bytes)), "attempt": one.attempt, "stage": one.stage,
                }
                for one in self.active.values()
            ],
            "retries": self.retries,
            "message": self.message,
        }  # fmt: skip

    def write(self) -> None:
        """Put the progress where the controller reads it. A job's folder that is full ends no staging."""
        with suppress(OSError):
            write_atomic(self._folder / "progress.json", json.dumps(self.document()).encode(), durable=False)

    async def write_regularly(self) -> None:
        """Do so about once a second, until cancelled."""
        while True:
            self.write()
            await asyncio.sleep(INTERVAL_S)

    def event(self, name: str, **values: object) -> None:
        """Append a line to events.jsonl."""
        line = json.dumps({"at": _now(), "event": name, **values}) + "\n"
        with suppress(OSError), open(self._folder / "events.jsonl", "ab", buffering=0) as file:
            file.write(line.encode())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
