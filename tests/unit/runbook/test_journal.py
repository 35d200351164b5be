"""The journal: events only ever grow, whoever writes and whatever dies."""

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from aerie.errors import AerieError
from aerie.runbook.journal import Journal


def _write(path: Path, run: str) -> None:
    with Journal(path) as journal:
        for number in range(25):
            journal.append(run, "noted", {"number": number})


def test_an_event_comes_back_as_it_was(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "journal.sqlite") as journal:
        seq = journal.append("r1", "step.done", {"ü": [1, None]}, step="a", attempt=2)
        entry = journal.entry(seq)
    assert (entry.run, entry.kind, entry.step, entry.attempt, entry.data) == (
        "r1",
        "step.done",
        "a",
        2,
        {"ü": [1, None]},
    )
    assert entry.at.endswith("Z")
    assert len(entry.at) == len("2026-11-30T01:46:02.123Z")


def test_many_writers_from_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "journal.sqlite"
    writers = [context.Process(target=_write, args=(path, f"r{number}")) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    with Journal(path) as journal:
        for number in range(4):
            assert [entry.data["number"] for entry in journal.events(f"r{number}")] == list(range(25))


@pytest.mark.parametrize("statement", ["UPDATE event SET kind = 'x'", "DELETE FROM event"])
def test_events_are_never_changed(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "journal.sqlite"
    _write(path, "r")
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.execute(statement)
    database.close()


def test_settings(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite") as journal:
        pragmas = {
            name: journal._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    _write(path, "r")
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(AerieError) as error:
        Journal(path)
    assert str(error.value) == (
        f"journal {path}: 'schema 99', expected at most 1. It was written by a newer aerie: use that one."
    )


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(AerieError, match="file is not a database"):
        Journal(path)
