"""The journal: an append-only table of events on SQLite, the only file of aerie that holds SQL.

An event says what happened; what is true now is a query over events. Files come first (evidence, artifacts,
result), the event after, so that whatever an event names was complete before it was written.

run.opened     {runbook, profile, host, directory, overrides, controller}
run.resumed    the same
step.intended  {key, parts, inputs, reason, folder}                      a job is about to start
step.started   {pid, start_ticks, boot_id, backend, unit}                it did
step.done      {key, parts, inputs, output, evidence_sha256, artifacts, folder, seconds}
step.failed    {outcome, message, …}                                     an attempt ended without evidence
step.retry     {delay_s, left}
step.reused    {seq, run, attempt}                                       the step.done event that still holds
step.damaged   {seq, path, seen}                                         a step.done event that no longer does
gate.judged    {decision, reasons, output}
gate.approved  {reason, by, output}
run.closed     {state, exit_code, reasons, selection}
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from aerie.errors import AerieError

__all__ = ["Entry", "Journal"]

# Numbered from 1 by position; append only, as journals of every earlier version exist.
_MIGRATIONS = (
    """
    CREATE TABLE event (
        seq     INTEGER PRIMARY KEY AUTOINCREMENT,
        at      TEXT NOT NULL,
        run     TEXT NOT NULL,
        step    TEXT,
        attempt INTEGER,
        kind    TEXT NOT NULL,
        data    TEXT NOT NULL CHECK (json_valid(data))
    );
    CREATE INDEX event_run ON event (run, seq);
    CREATE INDEX event_kind ON event (kind, step, seq);
    CREATE TRIGGER event_is_never_updated BEFORE UPDATE ON event
        BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
    CREATE TRIGGER event_is_never_deleted BEFORE DELETE ON event
        BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
    """,
)

_DONE = """WHERE kind = 'step.done' AND step = ? AND run IN (
               SELECT run FROM event WHERE kind = 'run.opened'
               AND json_extract(data, '$.runbook') = ? AND json_extract(data, '$.host') = ?)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event as read. at: "2026-11-30T01:46:02.123Z"; step and attempt are None for events of the whole run."""

    seq: int
    at: str
    run: str
    step: str | None
    attempt: int | None
    kind: str
    data: Mapping[str, Any]


class Journal:
    """An open journal. Many processes may read; a writer waits up to 30 s for another to finish."""

    def __init__(self, path: Path) -> None:
        """Open or make the journal at `path` and bring its schema up to date. Raises AerieError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._db.execute("PRAGMA busy_timeout = 30000")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
        except sqlite3.DatabaseError as error:
            raise AerieError(
                f"journal {path}", seen=str(error), expected="a readable SQLite database",
                remedy="Restore it from a copy, or move it away: runs then start from nothing.",
            ) from error  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def append(
        self, run: str, kind: str, data: Mapping[str, Any], *, step: str | None = None, attempt: int | None = None
    ) -> int:
        """Add one event, durable when this returns; its number in the journal."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = json.dumps(data, sort_keys=True)
        with self._write():
            cursor = self._db.execute(
                "INSERT INTO event (at, run, step, attempt, kind, data) VALUES (?, ?, ?, ?, ?, ?)",
                (at, run, step, attempt, kind, text),
            )
        assert cursor.lastrowid is not None, "an INSERT always has a row id"
        return cursor.lastrowid

    def events(self, run: str) -> tuple[Entry, ...]:
        """Every event of one run, in order."""
        return self._select("WHERE run = ? ORDER BY seq", run)

    def entry(self, seq: int) -> Entry:
        """The event with this number."""
        return self._select("WHERE seq = ?", seq)[0]

    def runs(self, runbook: str | None = None, profile: str | None = None, host: str | None = None) -> tuple[str, ...]:
        """The ids of all runs, or of those of a runbook, profile and host, oldest first."""
        rows = self._db.execute(
            """SELECT run FROM event WHERE kind = 'run.opened'
               AND json_extract(data, '$.runbook') = coalesce(?, json_extract(data, '$.runbook'))
               AND json_extract(data, '$.profile') = coalesce(?, json_extract(data, '$.profile'))
               AND json_extract(data, '$.host') = coalesce(?, json_extract(data, '$.host')) ORDER BY seq""",
            (runbook, profile, host),
        )
        return tuple(row[0] for row in rows)

    def unclosed(self) -> tuple[str, ...]:
        """The ids of the runs that were opened or resumed and not closed since, oldest first."""
        rows = self._db.execute(
            """SELECT run FROM (SELECT run, kind, max(seq) FROM event
                                WHERE kind IN ('run.opened', 'run.resumed', 'run.closed') GROUP BY run)
               WHERE kind <> 'run.closed' ORDER BY run"""
        )
        return tuple(row[0] for row in rows)

    def made(self, runbook: str, host: str, step: str, key: str) -> tuple[Entry, ...]:
        """Every step.done with this key of this step of this runbook on this host, newest first."""
        return self._select(f"{_DONE} AND json_extract(data, '$.key') = ? ORDER BY seq DESC", step, runbook, host, key)

    def newest(self, runbook: str, host: str, step: str, *, profile: str | None = None) -> Entry | None:
        """The newest step.done of this step of this runbook on this host, whatever its key. profile: of this one."""
        found = self._select(f"{_DONE} ORDER BY seq DESC", step, runbook, host)
        return next((one for one in found if profile in (None, self._profile(one.run))), None)

    def durations_s(self, runbook: str, host: str, step: str) -> tuple[float, ...]:
        """How long the step took whenever it was done."""
        query = f"SELECT json_extract(data, '$.seconds') FROM event {_DONE}"
        return tuple(row[0] for row in self._db.execute(query, (step, runbook, host)))

    def damaged(self, step: str) -> dict[int, str]:
        """The numbers of those step.done events whose files were found damaged, with what was seen."""
        found = self._select("WHERE kind = 'step.damaged' AND step = ?", step)
        return {entry.data["seq"]: f"{entry.data['path']}: {entry.data['seen']}" for entry in found}

    def approvals(self, runbook: str, host: str, step: str, output: str) -> tuple[Entry, ...]:
        """Every approval of exactly this output of the step."""
        return self._select(
            """WHERE kind = 'gate.approved' AND step = ? AND json_extract(data, '$.output') = ? AND run IN (
                   SELECT run FROM event WHERE kind = 'run.opened'
                   AND json_extract(data, '$.runbook') = ? AND json_extract(data, '$.host') = ?)
               ORDER BY seq""",
            step, output, runbook, host,
        )  # fmt: skip

    def _profile(self, run: str) -> str:
        opened = self._select("WHERE kind = 'run.opened' AND run = ? LIMIT 1", run)
        return str(opened[0].data["profile"])

    def _select(self, where: str, *arguments: object) -> tuple[Entry, ...]:
        rows = self._db.execute(f"SELECT seq, at, run, step, attempt, kind, data FROM event {where}", arguments)
        return tuple(
            Entry(seq=seq, at=at, run=run, step=step, attempt=attempt, kind=kind, data=json.loads(data))
            for seq, at, run, step, attempt, kind, data in rows
        )

    @contextmanager
    def _write(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")  # a busy journal fails here, before any work is done
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            self._db.rollback()  # nothing to do after a COMMIT; covers one that failed

    def _migrate(self) -> None:
        known = len(_MIGRATIONS)
        if self._version() < known:
            with self._write():
                # Read again inside the transaction: another process may have migrated meanwhile.
                for number in range(self._version() + 1, known + 1):
                    for statement in _statements(_MIGRATIONS[number - 1]):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {number}")
        if (seen := self._version()) > known:
            raise AerieError(
                f"journal {self._path}", seen=f"schema {seen}", expected=f"at most {known}",
                remedy="It was written by a newer aerie: use that one.",
            )  # fmt: skip

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    # executescript would commit the open transaction first, and a half-done migration would stay.
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""
