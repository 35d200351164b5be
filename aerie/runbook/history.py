"""Runs as the journal tells them: one line of each, one in full, and which of them still has something alive."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from aerie.choice import nearest
from aerie.errors import UsageError
from aerie.paths import state_dir
from aerie.runbook import jobs, state, supervise
from aerie.runbook.journal import Entry, Journal
from aerie.runbook.state import RunSummary

__all__ = ["RunRecord", "StepRecord", "known", "live_job", "open_journal", "record", "runs", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of a run as it stands. state: pending, running, done, reused or failed.

    folder: of the attempt whose result is used ("" while there is none), with evidence.json, out/ and log in it;
    origin: the run that made it. attempts: tries in this run. reason: why it ran here.
    """

    id: str
    title: str
    state: str
    origin: str
    folder: str
    evidence_sha256: str
    output: str
    artifacts: tuple[Mapping[str, Any], ...]
    attempts: int
    reason: str
    started_at: str
    ended_at: str
    seconds: float
    message: str
    decision: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run in full, from the journal. wall_s: while a controller worked at it, pauses left out."""

    summary: RunSummary
    title: str
    steps: tuple[StepRecord, ...]
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


def open_journal() -> Journal:
    """The journal of this user's state folder."""
    return Journal(state_dir() / "journal.sqlite")


def runs() -> tuple[RunSummary, ...]:
    """Every run, newest first."""
    with open_journal() as journal:
        return tuple(summary(journal.events(run_id)) for run_id in reversed(journal.runs()))


def record(run_id: str) -> RunRecord:
    """One run in full; "latest" is the newest. Raises UsageError for an unknown run."""
    with open_journal() as journal:
        run_id = known(journal, run_id)
        entries = journal.events(run_id)
        data = entries[0].data
        opened = state.opening(entries).data
        steps = tuple(
            _step_record(journal, entries, name, title)
            for name, title in zip(opened["steps"], opened["titles"], strict=True)
        )
        return RunRecord(summary=summary(entries), title=data["title"], steps=steps, wall_s=_worked_s(entries))


def _worked_s(entries: Sequence[Entry]) -> float:
    """Seconds from each opening or resumption to the last event before the next."""
    worked = timedelta()
    for before, after in pairwise(entries):
        if after.kind != "run.resumed":
            worked += datetime.fromisoformat(after.at) - datetime.fromisoformat(before.at)
    return worked.total_seconds()


def known(journal: Journal, run_id: str) -> str:
    known = journal.runs()
    if run_id == "latest" and known:
        return known[-1]
    if run_id not in known:
        raise UsageError(f"run {run_id}", seen=run_id, expected="a run of this user on this machine, see invoke runs",
                         remedy=nearest(run_id, known))  # fmt: skip
    return run_id


def live_job(entries: Sequence[Entry]) -> jobs.Job | None:
    for attempt in state.attempts(entries):
        if attempt.ended is None:
            folder = state_dir() / attempt.intended.data["folder"]
            if (job := jobs.find(folder, attempt.started.data if attempt.started else None)) is not None:
                return job
    return None


def summary(entries: Sequence[Entry]) -> RunSummary:
    controller = state.opening(entries).data["controller"]
    is_open = state.closing(entries) is None
    return state.summarise(
        entries,
        is_controlled=is_open
        and supervise.is_running(controller["pid"], controller["start_ticks"], controller["boot_id"]),
        has_live_job=is_open and live_job(entries) is not None,
    )


def _step_record(journal: Journal, entries: Sequence[Entry], name: str, title: str) -> StepRecord:
    mine = [entry for entry in entries if entry.step == name]
    tries = [attempt for attempt in state.attempts(entries) if attempt.step == name]
    made = next((entry for entry in reversed(mine) if entry.kind in ("step.done", "step.reused")), None)
    if made is not None and made.kind == "step.reused":
        made = journal.entry(made.data["seq"])
    last = tries[-1] if tries else None
    if last is not None and last.ended is None:
        now = "running"
    elif last is not None and last.ended is not None and last.ended.kind == "step.failed":
        now = "failed"
    else:
        now = "pending" if made is None else "done" if made.run == entries[0].run else "reused"
    judged = [entry.data for entry in mine if entry.kind == "gate.judged"]
    result: Mapping[str, Any] = made.data if made else {}
    return StepRecord(
        id=name,
        title=title,
        state=now,
        origin=made.run if made else "",
        folder=str(state_dir() / result["folder"]) if made else "",
        evidence_sha256=result.get("evidence_sha256", ""),
        output=result.get("output", ""),
        artifacts=tuple(result.get("artifacts", ())),
        attempts=len(tries),
        reason=last.intended.data["reason"] if last else "",
        started_at=last.intended.at if last else "",
        ended_at=last.ended.at if last and last.ended else "",
        seconds=result.get("seconds", 0.0),
        message=last.ended.data["message"] if now == "failed" and last and last.ended else "",
        decision=judged[-1]["decision"] if judged else "",
        reasons=tuple(judged[-1]["reasons"]) if judged else (),
    )
