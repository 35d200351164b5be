"""Run a runbook, go on with a run, look at runs, approve a gate: the functions that tasks call.

    plan(name, …)               what would run and why; changes nothing
    run(name, …)                go on with the unfinished run of this runbook, profile and host, or open a new one
    resume(run_id)              go on with this one
    runs()                      every run with its state and its next command, newest first
    record(run_id)              one run in full: steps, times, evidence files and hashes, gates
    approve(run_id, step, reason)

Results are made once and reused by every later run of the same runbook and host while they hold: see plan.Present.
"""

import getpass
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from aerie.errors import AerieError, UsageError
from aerie.paths import state_dir
from aerie.runbook import events, hostlock, state
from aerie.runbook import plan as planning
from aerie.runbook.execution import Execution, RunResult
from aerie.runbook.history import RunRecord, StepRecord, known, live_job, open_journal, record, runs, summary
from aerie.runbook.journal import Journal
from aerie.runbook.plan import Plan, Present
from aerie.runbook.spec import Loaded, load
from aerie.runbook.state import RunSummary

__all__ = [
    "RunRecord",
    "RunResult",
    "RunSummary",
    "StepRecord",
    "approve",
    "open_journal",
    "plan",
    "record",
    "resume",
    "run",
    "runs",
]


def plan(
    runbook: str, *, profile: str | None = None, host: str = "localhost", overrides: Sequence[str] = (),
    from_: str | None = None, until: str | None = None, only: Sequence[str] = (), again: bool = False,
    directory: Path | None = None,
) -> Plan:  # fmt: skip
    """What `run` with the same arguments would do now, step by step with the reason. Changes nothing."""
    loaded = load(runbook, profile, overrides=overrides, directory=directory)
    selection = planning.select(loaded.runbook.steps, from_=from_, until=until, only=only, again=again)
    with open_journal() as journal:
        return Present(journal, loaded, host).plan(selection)


def run(
    runbook: str, *, profile: str | None = None, host: str = "localhost", overrides: Sequence[str] = (),
    from_: str | None = None, until: str | None = None, only: Sequence[str] = (), again: bool = False,
    directory: Path | None = None, listener: events.Listener = lambda event: None,
) -> RunResult:  # fmt: skip
    """Run the selected steps (all, unless said) that have no result that holds, in order.

    overrides: "a.b=value", over the profile. again: run the selected steps even where their result holds.
    Goes on with the unfinished run of the same runbook, profile and host if there is one; opens none when there
    is nothing to do. directory: where runbooks lie, for those outside of this checkout.
    Raises UsageError for anything that cannot be right, and AerieError when the host is taken or the disk too
    small; then nothing was started. How a started run ends is the result, never an exception.
    """
    loaded = load(runbook, profile, overrides=overrides, directory=directory)
    selection = planning.select(loaded.runbook.steps, from_=from_, until=until, only=only, again=again)
    with open_journal() as journal, hostlock.hold(state_dir() / "hosts", host) as claim:
        last = _newest(journal, loaded, host)
        is_open = last is not None and last.state != "done"
        _refuse_beside_live_job(journal, host, last.run if last and is_open else None)
        run_id = last.run if last and is_open else _new_id()
        execution = Execution(journal, loaded, host, run_id, selection, listener)
        if last is not None and not is_open and not again and execution.has_nothing_to_do():
            return RunResult(
                run=last.run, state="done", exit_code=0, reasons=(), next_command=last.next_command, ran=(),
                reused=tuple(step.id for step in loaded.runbook.steps), seconds=0.0, is_unchanged=True,
            )  # fmt: skip
        claim(run_id)
        return execution.run(resumed=is_open)


def resume(run_id: str, *, listener: events.Listener = lambda event: None) -> RunResult:
    """Go on with a run: all its steps, with the profile and overrides it had last. "latest" is the newest run.

    A job that is still alive is attached to, not started again. A resume is a person's decision: a step that
    failed or was lost before has its retries anew. Raises as `run` does.
    """
    with open_journal() as journal:
        run_id = known(journal, run_id)
        data = state.opening(journal.events(run_id)).data
        loaded = load(data["runbook"], data["profile"], overrides=data["overrides"], directory=Path(data["directory"]))
        selection = planning.select(loaded.runbook.steps, from_=None, until=None, only=())
        with hostlock.hold(state_dir() / "hosts", data["host"]) as claim:
            _refuse_beside_live_job(journal, data["host"], run_id)
            claim(run_id)
            return Execution(journal, loaded, data["host"], run_id, selection, listener).run(resumed=True)


def approve(run_id: str, step: str, reason: str) -> None:
    """Let the run go on past the gate of `step` that stopped it or waits, for exactly the output it judged.

    The reason is recorded with the user's name. Raises UsageError when that gate is not what holds the run.
    """
    with open_journal() as journal:
        run_id = known(journal, run_id)
        closed = state.closing(journal.events(run_id))
        held = closed.data.get("approve") if closed else None
        if held != step:
            expected = f"{held}, whose gate holds the run" if held else "a run that a gate holds"
            raise UsageError(f"approve {step}", seen=step, expected=expected, remedy="See invoke runs.")
        if not reason.strip():
            raise UsageError(
                "--reason", seen=reason, expected="a sentence that others can read later", remedy="Give one."
            )
        assert closed is not None, "held came from it"
        said = {"reason": reason.strip(), "by": getpass.getuser(), "output": closed.data["output"]}
        journal.append(run_id, "gate.approved", said, step=step)


def _new_id() -> str:
    """Sorts by time to the minute: "20261130-0146-3f2a", UTC."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M}-{secrets.token_hex(2)}"


def _newest(journal: Journal, loaded: Loaded, host: str) -> RunSummary | None:
    found = journal.runs(loaded.runbook.name, loaded.profile, host)
    return summary(journal.events(found[-1])) if found else None


def _refuse_beside_live_job(journal: Journal, host: str, mine: str | None) -> None:
    """A controller that was killed frees the host's lock, but its job may still use the host."""
    for run_id in journal.unclosed():
        entries = journal.events(run_id)
        if run_id == mine or entries[0].data["host"] != host:
            continue
        if (job := live_job(entries)) is not None:
            raise AerieError(
                f"host {host}", seen=f"a job of run {run_id} alive (process {job.pid})",
                expected="no other run on the host", remedy=f"Go on with it: invoke resume {run_id}",
            )  # fmt: skip
