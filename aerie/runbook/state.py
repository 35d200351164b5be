"""What the events of a run amount to: its attempts, its state, and the command that goes on from there."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aerie.runbook.journal import Entry

__all__ = ["Attempt", "RunSummary", "attempts", "closing", "opening", "summarise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a step. started and ended are None while the journal does not have them."""

    step: str
    number: int
    intended: Entry
    started: Entry | None
    ended: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of `runs`. state: running, waiting, stopped, failed, lost or done; step: the one it is at, or ""."""

    run: str
    runbook: str
    profile: str
    host: str
    state: str
    step: str
    opened_at: str
    changed_at: str
    reasons: tuple[str, ...]
    next_command: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


def attempts(entries: Sequence[Entry]) -> tuple[Attempt, ...]:
    """Every attempt of a run, in order."""
    found: dict[tuple[str, int], dict[str, Entry]] = {}
    for entry in entries:
        if entry.step is None or entry.attempt is None or not entry.kind.startswith("step."):
            continue
        events = found.setdefault((entry.step, entry.attempt), {})
        events["ended" if entry.kind in ("step.done", "step.failed") else entry.kind] = entry
    return tuple(
        Attempt(
            step=step,
            number=number,
            intended=events["step.intended"],
            started=events.get("step.started"),
            ended=events.get("ended"),
        )
        for (step, number), events in found.items()
        if "step.intended" in events
    )


def opening(entries: Sequence[Entry]) -> Entry:
    """How the run was opened or, if it was, resumed last."""
    return [entry for entry in entries if entry.kind in ("run.opened", "run.resumed")][-1]


def closing(entries: Sequence[Entry]) -> Entry | None:
    """How the run ended; None while it goes on, and for one whose controller died."""
    ends = [entry for entry in entries if entry.kind in ("run.opened", "run.resumed", "run.closed")]
    return ends[-1] if ends[-1].kind == "run.closed" else None


def summarise(entries: Sequence[Entry], *, is_controlled: bool, has_live_job: bool) -> RunSummary:
    """One run's line. is_controlled: its controller lives; has_live_job: a job of it does."""
    opened, closed = opening(entries), closing(entries)
    run, data = opened.run, opened.data
    if closed is not None:
        state, reasons = closed.data["state"], tuple(closed.data["reasons"])
    else:
        state, reasons = ("running" if is_controlled or has_live_job else "lost"), ()
    if state == "running" and not is_controlled:
        reasons = ("its job goes on without a controller",)
    steps = [entry.step for entry in entries if entry.step is not None]
    return RunSummary(
        run=run,
        runbook=data["runbook"],
        profile=data["profile"],
        host=data["host"],
        state=state,
        step=steps[-1] if steps and state != "done" else "",
        opened_at=entries[0].at,
        changed_at=entries[-1].at,
        reasons=reasons,
        next_command="" if is_controlled else next_command(run, state, closed.data if closed else {}),
    )


def next_command(run: str, state: str, closed: Mapping[str, Any]) -> str:
    """What to type to go on from this state."""
    if state == "done":
        return f"invoke report {run}"
    if closed.get("approve"):
        return f"invoke approve {run} {closed['approve']} --reason TEXT"
    return f"invoke resume {run}"
