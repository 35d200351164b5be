"""How the hub goes wrong on demand: which requests, how, and how often."""

import fnmatch
import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from aerie.errors import UsageError
from aerie.runbook.step import write_atomic

__all__ = ["BODY", "KINDS", "REVISION", "STATUS", "Fault", "Faults", "read", "write"]

STATUS = {
    "401": "no or a wrong token",
    "403": "not allowed",
    "404": "not there",
    "416": "a range that cannot be",
    "429": "too many requests",
    "500": "broken",
    "503": "overloaded",
}
BODY = {
    "stall": "half of the answer, then nothing, on a connection that stays open until the fault is over",
    "cut": "half of the answer, then the connection ends",
    "no-range": "whole files, whatever range was asked for",
    "slow": "few bytes a second",
    "truncated": "files that are only half as long",
    "flipped": "files with one byte that is wrong",
    "expired": "signed addresses that are too old at once",
}
REVISION = {"wrong-revision": "the newest revision, whatever one was asked for"}
KINDS = STATUS | BODY | REVISION


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    path: a pattern (*, ?) of the request's path if it starts with "/", else of a file's path in its repository.
    times: requests that it meets before it is over; None: all. at: byte of the answer (stall, cut) or of the file
    (truncated, flipped) where it goes wrong; None: the middle. retry_after: the header of 429 and 503, in seconds
    or as a date; rate_bytes_s: of slow.
    """

    kind: str
    path: str = "*"
    times: int | None = None
    at: int | None = None
    retry_after: str | None = None
    rate_bytes_s: int = 64 << 10

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(
                "lab.hub", seen=self.kind, expected=f"one of {', '.join(KINDS)}, normal, gone", remedy="Correct it."
            )

    def meets(self, request: str, file: str | None) -> bool:
        """Is it for this request? file: path in the repository of a request for a file."""
        if self.path.startswith("/"):
            return fnmatch.fnmatchcase(request, self.path)
        return file is not None and fnmatch.fnmatchcase(file, self.path)


def write(folder: Path, faults: Iterable[Fault]) -> None:
    """Let these faults, and no others, happen from the next request on, each counted anew."""
    write_atomic(folder / "faults.json", json.dumps([asdict(one) for one in faults]).encode(), durable=False)


def read(folder: Path) -> tuple[Fault, ...]:
    """The faults that were written last."""
    try:
        return tuple(Fault(**row) for row in json.loads((folder / "faults.json").read_bytes()))
    except FileNotFoundError:
        return ()


class Faults:
    """The server's side: which fault meets a request, with the counting."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._file_id: tuple[int, int] | None = None
        self._left: list[tuple[Fault, int | None]] = []

    def take(self, kinds: Iterable[str], request: str, file: str | None) -> Fault | None:
        """The first fault of these kinds for the request, counted; None where there is none."""
        with self._lock:
            self._refresh()
            for index, (fault, left) in enumerate(self._left):
                if fault.kind in kinds and left != 0 and fault.meets(request, file):
                    self._left[index] = (fault, None if left is None else left - 1)
                    return fault
        return None

    def is_over(self, fault: Fault) -> bool:
        """Were faults written after this one was taken?"""
        with self._lock:
            self._refresh()
            return not any(one is fault for one, _ in self._left)

    def _refresh(self) -> None:
        try:
            status = (self.folder / "faults.json").stat()
            file_id = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            file_id = None
        if file_id != self._file_id:
            self._file_id = file_id
            self._left = [(fault, fault.times) for fault in read(self.folder)]
