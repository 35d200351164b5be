"""Processes that were ever the service's: what is left of it is known by them, also after a restart of the watchdog."""

import json
from collections.abc import Iterable
from pathlib import Path

from aerie.engines.watchdog import proc
from aerie.runbook.step import write_atomic

__all__ = ["Known"]

SCHEMA = "aerie.watchdog.processes/1"
PROC = Path("/proc")


class Known:
    """Keeps them in a file, each by its id and its start, which together no other process of this boot has."""

    def __init__(self, file: Path, root: Path = PROC) -> None:
        self._file, self._root = file, root
        self._boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        self._starts = self._read()

    def add(self, pids: Iterable[int]) -> None:
        """These are the service's now; those that have ended are forgotten."""
        now = {pid: start for pid in pids if (start := proc.started(pid, self._root)) is not None}
        known = {pid: self._starts[pid] for pid in self.alive()} | now
        if known != self._starts:
            self._starts = known
            rows = [{"pid": pid, "start_ticks": start} for pid, start in sorted(known.items())]
            document = {"schema": SCHEMA, "boot": self._boot, "processes": rows}
            write_atomic(self._file, (json.dumps(document) + "\n").encode())

    def alive(self) -> set[int]:
        """The ids of those that are there still; an id that another process has by now is not among them."""
        return {pid for pid, start in self._starts.items() if proc.started(pid, self._root) == start}

    def _read(self) -> dict[int, int]:
        try:
            told = json.loads(self._file.read_text())
            rows = told["processes"] if told["boot"] == self._boot else ()
            return {int(row["pid"]): int(row["start_ticks"]) for row in rows}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
