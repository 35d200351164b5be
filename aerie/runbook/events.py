"""What a run says while it goes: small frozen values for whoever shows it.

Each has `kind` ("step.started") and `to_dict()`, one JSON object of the fields and the kind.
The journal holds the lasting record; these are for the eye and may be dropped.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

__all__ = [
    "Event",
    "GateJudged",
    "Listener",
    "Noted",
    "RunClosed",
    "RunOpened",
    "StepDone",
    "StepFailed",
    "StepProgress",
    "StepRetry",
    "StepReused",
    "StepStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a run."""

    kind: ClassVar[str]
    run: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types, with `kind`."""
        return {"kind": self.kind, **asdict(self)}


Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOpened(Event):
    """A run begins, or goes on (resumed). steps: the ids of all its steps, in order; titles beside them."""

    kind = "run.opened"
    runbook: str
    profile: str
    host: str
    resumed: bool
    folder: str
    steps: tuple[str, ...]
    titles: tuple[str, ...]
    disk_needed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReused(Event):
    """An earlier result of the step still holds. origin: the run that made it (this one, after a resume)."""

    kind = "step.reused"
    step: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Event):
    """The step's job runs. reason: why it has to; attached: it was already running when this run was resumed.

    expected_s: median of the step's earlier durations, None when there is none.
    """

    kind = "step.started"
    step: str
    attempt: int
    reason: str
    attached: bool
    log: str
    expected_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress(Event):
    """About once a second while a job runs. age_s: since `done` or `note` last changed; elapsed_s: since the start.

    done, total, unit: as the step said, None and "" before it said anything. rate: units a second since the
    first report. eta_s: from the rate, or from earlier durations; None when neither is known.
    """

    kind = "step.progress"
    step: str
    attempt: int
    done: float | None
    total: float | None
    unit: str
    note: str
    rate: float | None
    eta_s: float | None
    age_s: float
    elapsed_s: float
    stall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """The step left its evidence and artifacts, hashed and journaled."""

    kind = "step.done"
    step: str
    attempt: int
    seconds: float
    evidence: str
    artifacts: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(Event):
    """An attempt ended without evidence. outcome: failed, timeout, stalled, stopped or lost. tail: last log lines."""

    kind = "step.failed"
    step: str
    attempt: int
    outcome: str
    message: str
    log: str
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRetry(Event):
    """The step will be tried again after delay_s; left: retries that remain after that one."""

    kind = "step.retry"
    step: str
    attempt: int
    delay_s: float
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudged(Event):
    """A gate's answer. decision: go, stop, wait (a person must approve) or approved (someone did, with a reason)."""

    kind = "gate.judged"
    step: str
    decision: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """Something the operator should know and need not act on, such as a damaged artifact that is made again."""

    kind = "noted"
    step: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClosed(Event):
    """The run ended for now. state: done, stopped, waiting or failed; next_command: what to type, or ""."""

    kind = "run.closed"
    state: str
    exit_code: int
    reasons: tuple[str, ...]
    next_command: str
    seconds: float
