"""The watchdog as a program: looks, says what it finds when that changes, and takes steps.

    python -I CODE SPEC.json          until it is ended
    python -I CODE SPEC.json --once   two looks and the diagnosis as JSON, without any step: what is it doing?
    python -I CODE version            says that this code is here

State is kept in the spec's folder, so that a watchdog that was restarted does not begin to count anew, and knows what
was the service's.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerie.engines.watchdog import evidence
from aerie.engines.watchdog.diagnosis import Diagnosis, Kind, diagnose
from aerie.engines.watchdog.known import Known
from aerie.engines.watchdog.observation import Observation
from aerie.engines.watchdog.observer import Observer, library
from aerie.engines.watchdog.recovery import Attempt, Decision, Step, decide
from aerie.engines.watchdog.service import Service, Unit, send
from aerie.engines.watchdog.spec import Spec
from aerie.errors import AerieError
from aerie.runbook.step import write_atomic

__all__ = ["Watchdog", "main"]

SCHEMA = "aerie.watchdog/1"
REMEMBERED = 400  # looks: at 5 s half an hour; the first of a start is always kept


class Watchdog:
    """Looks at one service again and again. tell: called with a document at every change and every step."""

    def __init__(
        self, spec: Spec, service: Service, observer: Observer, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self.spec, self.service, self.observer, self.tell = spec, service, observer, tell
        self.seen: list[Observation] = []
        self._start = ""
        self._ours = Known(spec.folder / "processes.json")
        self._said: Kind | None = None
        self._file = spec.folder / "attempts.json"
        self.attempts = _read(self._file)

    def turn(self) -> Diagnosis:
        """One look, and a step where one is due."""
        found, unit = self._look()
        if found.kind is Kind.HEALTHY and any(not one.is_over for one in self.attempts):
            self.attempts = [replace(one, is_over=True) for one in self.attempts]
            self._write()
        decision = decide(found, self.attempts, self._ours.alive(), time.time(), self.spec.limits)
        if decision.step is Step.WAIT:
            if found.kind is not self._said:
                self._tell(found, decision)
            return found
        kept = evidence.collect(
            self.spec.folder / "incidents", f"{_stamp()}-{found.kind}", found, self.seen[-20:], self.service
        )
        # Written first: a step that ends the watchdog too is one that was taken.
        self.attempts.append(Attempt(at=time.time(), kind=found.kind, step=decision.step))
        self._write()
        self._tell(found, decision, evidence=str(kept))
        self._act(decision, unit)
        return found

    def _look(self) -> tuple[Diagnosis, str]:
        state, now = self.observer.look()
        if state.start != self._start and state.pids:
            self.seen, self._start = [], state.start
        self._ours.add(state.pids)
        self.seen.append(now)
        if len(self.seen) > REMEMBERED:
            del self.seen[1]
        return diagnose(self.seen, self.spec.limits, self._ours.alive()), state.unit

    def _act(self, decision: Decision, unit: str) -> None:
        match decision.step:
            case Step.CONTINUE:
                send(decision.pids, signal.SIGCONT)
            case Step.END_HOLDERS:
                send(decision.pids, signal.SIGKILL)
                if unit == "failed":  # it was to run; one that a person stopped stays so
                    self.service.start()
            case Step.RESTART:
                self.service.restart()
            case Step.KILL:
                self.service.kill()

    def _tell(self, found: Diagnosis, decision: Decision, **more: str) -> None:
        self._said = found.kind
        document = {
            "schema": SCHEMA,
            "at": _stamp(),
            "unit": self.spec.unit,
            "kind": found.kind.value,
            "reason": found.reason,
            "advice": list(found.advice),
            "step": decision.step.value,
            "why": decision.reason,
            **more,
        }
        write_atomic(self.spec.folder / "status.json", (json.dumps(document) + "\n").encode())
        self.tell(document)

    def _write(self) -> None:
        self.attempts = self.attempts[-100:]
        told = {"schema": "aerie.watchdog.attempts/1", "attempts": [one.to_dict() for one in self.attempts]}
        write_atomic(self._file, (json.dumps(told) + "\n").encode())


def main(arguments: Sequence[str]) -> int:
    """Watch until a signal ends it."""
    if list(arguments) == ["version"]:
        _print({"schema": SCHEMA})
        return 0
    try:
        spec = Spec.read(Path(arguments[0]))
    except (AerieError, IndexError) as error:
        sys.stderr.write(f"{error or __doc__}\n")
        return 2
    spec.folder.mkdir(parents=True, exist_ok=True)
    service = Unit(spec.unit, spec.log)
    observer = Observer(spec, service, library())
    if "--once" in arguments:
        return _once(spec, observer)
    dog = Watchdog(spec, service, observer, _print)
    while True:
        began = time.monotonic()
        dog.turn()
        time.sleep(max(0.0, spec.limits.poll_s - (time.monotonic() - began)))


def _once(spec: Spec, observer: Observer) -> int:
    seen = [observer.look()[1]]
    time.sleep(min(2.0, spec.limits.poll_s))
    seen.append(observer.look()[1])
    found = diagnose(seen, spec.limits)
    _print({"schema": SCHEMA, "unit": spec.unit, "kind": found.kind.value, "reason": found.reason})
    return 0


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _read(file: Path) -> list[Attempt]:
    try:
        return [Attempt.from_dict(one) for one in json.loads(file.read_text())["attempts"]]
    except (OSError, ValueError, KeyError):
        return []


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
