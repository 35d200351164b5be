"""One run at work: every step in order brought to a result that holds and through its gate, until something ends it."""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from aerie.errors import AerieError, UsageError
from aerie.paths import state_dir
from aerie.runbook import events, interpreters, state, supervise
from aerie.runbook import plan as planning
from aerie.runbook.attempt import Attempts, Failure
from aerie.runbook.fit import refuse_what_cannot_run
from aerie.runbook.interrupts import catch
from aerie.runbook.journal import Journal
from aerie.runbook.plan import Made, Plan, Present, Selection
from aerie.runbook.spec import Loaded, Step

__all__ = ["Execution", "RunResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended for now. state: done, stopped, waiting or failed.

    exit_code: 0 done (or the selected steps are), 1 failed, 4 stopped by a gate, 5 waiting for an approval,
    130 by Ctrl-C, 143 by SIGTERM. error: {where, seen, expected, remedy} of the step that failed, if it said so.
    ran, reused: ids of steps, in order. is_unchanged: every step held, nothing was opened or written.
    """

    run: str
    state: str
    exit_code: int
    reasons: tuple[str, ...]
    next_command: str
    ran: tuple[str, ...]
    reused: tuple[str, ...]
    seconds: float
    error: Mapping[str, Any] | None = None
    is_unchanged: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


class _Held(Exception):
    """The run cannot go on now. Carries what run.closed will say."""

    def __init__(self, state: str, exit_code: int, reasons: tuple[str, ...], **more: Any) -> None:
        self.state, self.exit_code, self.reasons, self.more = state, exit_code, reasons, more


class Execution:
    """One run being worked on by this process."""

    def __init__(
        self, journal: Journal, loaded: Loaded, host: str, run_id: str, selection: Selection, listener: events.Listener
    ) -> None:
        self._journal = journal
        self._loaded = loaded
        self._host = host
        self._run = run_id
        self._selection = selection
        self._say = listener
        self._present = Present(journal, loaded, host)
        self._made: dict[str, Made | None] = {}
        self._ran: list[str] = []
        self._failures: dict[str, tuple[int, Failure]] = {}  # of jobs that were attached to, and failed then
        self._reused: dict[str, int] = {}  # step → seq of the step.done that this run refers to

    def has_nothing_to_do(self) -> bool:
        """Every selected step has a result that holds, and its gate lets it through."""
        lines = self._present.plan(self._selection).steps
        return all(line.action == "done" for line in lines if line.id in self._selection.steps)

    def run(self, *, resumed: bool) -> RunResult:
        """Work until the end, a gate, a failure or an interrupt."""
        began = time.monotonic()
        with catch() as interrupts:
            planned = self._present.plan(self._selection)
            _refuse_unselected_needs(planned)
            refuse_what_cannot_run(planned)
            self._open(planned, resumed=resumed)
            self._attempts = Attempts(
                self._journal, self._run, interpreters.of(self._loaded.values), self._say, interrupts
            )
            self._interrupts = interrupts
            try:
                self._settle_open_attempts()
                self._walk()
                held = self._end()
            except _Held as reason:
                held = reason
            except AerieError as error:
                said = {"where": error.where, "seen": error.seen, "expected": error.expected, "remedy": error.remedy}
                held = _Held("failed", error.exit_code, (str(error),), error=said)
        return self._close(held, time.monotonic() - began)

    def _open(self, planned: Plan, *, resumed: bool) -> None:
        steps = self._loaded.runbook.steps
        data = {
            "runbook": self._loaded.runbook.name,
            "title": self._loaded.runbook.title,
            "profile": self._loaded.profile,
            "host": self._host,
            "directory": str(self._loaded.directory),
            "overrides": self._loaded.overrides,
            "steps": [step.id for step in steps],
            "titles": [step.title for step in steps],
            "controller": _myself(),
        }
        for entry in self._journal.events(self._run):
            if entry.kind == "step.reused" and entry.step is not None:
                self._reused[entry.step] = entry.data["seq"]
        self._journal.append(self._run, "run.resumed" if resumed else "run.opened", data)
        self._say(
            events.RunOpened(
                run=self._run, runbook=self._loaded.runbook.name, profile=self._loaded.profile, host=self._host,
                resumed=resumed, folder=str(state_dir() / "runs" / self._run), steps=tuple(data["steps"]),
                titles=tuple(data["titles"]), disk_needed_bytes=planned.disk_needed_bytes,
            )
        )  # fmt: skip

    def _settle_open_attempts(self) -> None:
        """End what an earlier controller of this run left behind, so that a step begins with nothing else alive.

        A job that still does what its step asks for is attached to and seen through here.
        """
        by_id = {step.id: step for step in self._loaded.runbook.steps}
        for attempt in state.attempts(self._journal.events(self._run)):
            if attempt.ended is not None:
                continue
            step = by_id.get(attempt.step)
            if step is None:
                raise AerieError(
                    f"step {attempt.step}", seen="a job of a step that the runbook no longer has",
                    expected="the step in the runbook", remedy="Put it back until the job is settled.",
                )  # fmt: skip
            wanted = self._is_wanted(step, attempt)
            failure = self._attempts.settle(step, attempt, self._present.expected_s(step), wanted=wanted)
            if failure is None:
                self._ran.append(step.id)
            elif self._interrupts.count:
                raise self._stopped()
            elif wanted and failure.is_seen:
                self._failures[step.id] = (attempt.number, failure)

    def _is_wanted(self, step: Step, attempt: state.Attempt) -> bool:
        inputs: dict[str, str | None] = {}
        for line in self._loaded.runbook.steps:
            finding = self._present.examine(line, {need: inputs[need] for need in line.needs})
            inputs[line.id] = finding.made.output if finding.made else None
            if line.id == step.id:
                break
        given = {need: inputs[need] for need in step.needs}
        data = attempt.intended.data
        return step.id in self._selection.steps and data["key"] == finding.key and data["inputs"] == given

    def _walk(self) -> None:
        """Every step in order, from the start again when a result turned out to be damaged."""
        while not all(self._visit(step) for step in self._loaded.runbook.steps):
            self._made.clear()

    def _visit(self, step: Step) -> bool:
        """Bring one step to a result that holds and through its gate. False: an earlier one must run again first."""
        if self._interrupts.count:
            raise self._stopped()
        finding = self._examine(step)
        made = finding.made
        if step.id not in self._selection.steps:
            self._made[step.id] = made
            return True
        if missing := [need for need in step.needs if self._made[need] is None]:
            raise UsageError(
                f"step {step.id}", seen=f"no result of {', '.join(missing)} that holds",
                expected="one, or the step selected", remedy=f"Add --from {missing[0]}.",
            )  # fmt: skip
        if made is None or (self._selection.again and step.id not in self._ran):
            if not self._inputs_are_sound(step):
                return False
            reason = finding.reason or "asked for again"
            self._try(step, replace(finding, reason=reason))
            finding = self._examine(step)
            made = finding.made
            if made is None:
                raise AerieError(
                    f"step {step.id}", seen=finding.reason, expected="a result that holds right after it was made",
                    remedy="Nothing else may write to the run's folder; a `stale` must be content with what `run` did.",
                )  # fmt: skip
        elif step.id not in self._ran and self._reused.get(step.id) != made.seq and made.run != self._run:
            self._reuse(step, made)
        elif step.id not in self._ran:
            self._say(events.StepReused(run=self._run, step=step.id, origin=made.run))
        self._made[step.id] = made
        self._judge(step, made)
        return True

    def _examine(self, step: Step) -> planning.Finding:
        finding = self._present.examine(step, {need: _output(self._made[need]) for need in step.needs})
        for seq, damage in finding.damages:
            self._damaged(step.id, seq, damage.path, damage.seen)
        return finding

    def _damaged(self, step: str, seq: int, path: str, seen: str) -> None:
        self._journal.append(self._run, "step.damaged", {"seq": seq, "path": path, "seen": seen}, step=step)
        self._say(
            events.Noted(run=self._run, step=step, text=f"artifact {path}: {seen}; the step's result is not used")
        )

    def _inputs_are_sound(self, step: Step) -> bool:
        """Hash every file of every input: what a step builds on is never taken from a time stamp."""
        for need in step.needs:
            made = self._made[need]
            assert made is not None, "checked by the caller"
            if (damage := planning.damage_of(made, deep=True)) is not None:
                self._damaged(need, made.seq, damage.path, damage.seen)
                if need in self._ran:
                    raise AerieError(
                        f"step {need}", seen=f"artifact {damage}", expected="the files that it left in this very run",
                        remedy="Look at the disk (dmesg) and at what else writes to it.",
                    )  # fmt: skip
                return False
        return True

    def _reuse(self, step: Step, made: Made) -> None:
        said = {"seq": made.seq, "run": made.run, "attempt": made.attempt}
        self._journal.append(self._run, "step.reused", said, step=step.id)
        self._reused[step.id] = made.seq
        self._say(events.StepReused(run=self._run, step=step.id, origin=made.run))

    def _try(self, step: Step, finding: planning.Finding) -> None:
        """Attempts until one leaves evidence; raises _Held when the retries are used up."""
        inputs = {need: made for need in step.needs if (made := self._made[need]) is not None}
        number, failure = self._failures.pop(step.id, (0, None))
        for left in range(step.retries, -1, -1):
            if failure is None:
                number = self._next_number(step)
                failure = self._attempts.begin(
                    step,
                    number,
                    finding,
                    inputs,
                    self._present.expected_s(step),
                    timeout_s=self._present.timeout_s(step),
                )
            if failure is None:
                self._ran.append(step.id)
                return
            if self._interrupts.count:
                raise self._stopped()
            if left == 0:
                raise self._failed(step, failure)
            self._back_off(step, number, step.backoff_s * 2 ** (step.retries - left), left - 1)
            failure = None

    def _next_number(self, step: Step) -> int:
        tried = [a.number for a in state.attempts(self._journal.events(self._run)) if a.step == step.id]
        return max(tried, default=0) + 1

    def _back_off(self, step: Step, number: int, delay_s: float, left: int) -> None:
        self._journal.append(self._run, "step.retry", {"delay_s": delay_s, "left": left}, step=step.id, attempt=number)
        self._say(events.StepRetry(run=self._run, step=step.id, attempt=number, delay_s=delay_s, left=left))
        until = time.monotonic() + delay_s
        while (remaining := until - time.monotonic()) > 0:
            if self._interrupts.count:
                raise self._stopped()
            time.sleep(min(remaining, 0.2))

    def _judge(self, step: Step, made: Made) -> None:
        decision, reasons = self._present.verdict(step, made)
        if decision == "go" and not reasons:
            return
        self._journal.append(
            self._run, "gate.judged", {"decision": decision, "reasons": reasons, "output": made.output}, step=step.id
        )
        self._say(events.GateJudged(run=self._run, step=step.id, decision=decision, reasons=reasons))
        if decision == "stop":
            raise _Held("stopped", 4, (f"gate of {step.id}", *reasons), approve=step.id, output=made.output)
        if decision == "wait":
            raise _Held("waiting", 5, (f"approval after {step.id}", *reasons), approve=step.id, output=made.output)

    def _stopped(self) -> _Held:
        name = "Ctrl-C" if self._interrupts.first == signal.SIGINT else "SIGTERM"
        return _Held("stopped", self._interrupts.exit_code, (f"stopped by {name}",))

    def _failed(self, step: Step, failure: Failure) -> _Held:
        return _Held("failed", 1, (f"step {step.id} {failure.outcome}: {failure.message}",), error=failure.error)

    def _end(self) -> _Held:
        """All selected steps hold: the run is done if that is all of them."""
        if self._selection.is_all or all(self._made.values()):
            return _Held("done", 0, ())
        left = [name for name, made in self._made.items() if made is None]
        return _Held("stopped", 0, (f"not selected: {', '.join(left)}",))

    def _close(self, held: _Held, seconds: float) -> RunResult:
        data = {"state": held.state, "exit_code": held.exit_code, "reasons": held.reasons, **held.more}
        self._journal.append(self._run, "run.closed", data)
        command = state.next_command(self._run, held.state, data)
        self._say(
            events.RunClosed(
                run=self._run, state=held.state, exit_code=held.exit_code, reasons=held.reasons, next_command=command,
                seconds=seconds,
            )
        )  # fmt: skip
        return RunResult(
            run=self._run,
            state=held.state,
            exit_code=held.exit_code,
            reasons=held.reasons,
            next_command=command,
            ran=tuple(self._ran),
            reused=tuple(name for name, made in self._made.items() if made and name not in self._ran),
            seconds=seconds,
            error=held.more.get("error"),
        )


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "start_ticks": supervise.start_ticks(pid), "boot_id": supervise.boot_id()}


def _output(made: Made | None) -> str | None:
    return made.output if made else None


def _refuse_unselected_needs(planned: Plan) -> None:
    blocked = [line for line in planned.steps if line.action == "blocked" and "not selected" in line.reason]
    if blocked:
        raise UsageError(f"step {blocked[0].id}", seen=blocked[0].reason, expected="every needed step done or selected",
                         remedy="Select it too, or run without a selection.")  # fmt: skip
