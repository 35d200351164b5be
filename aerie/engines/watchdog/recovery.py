"""Which step to take: the least that was not tried, few in an hour, then none. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from aerie.engines.watchdog.diagnosis import Diagnosis, Kind
from aerie.engines.watchdog.spec import Limits

__all__ = ["Attempt", "Decision", "Step", "decide"]


class Step(StrEnum):
    """From the least on. Resetting a GPU is never done: it ends whatever else runs there."""

    WAIT = "wait"
    CONTINUE = "continue"  # SIGCONT to what was stopped
    END_HOLDERS = "end-holders"  # kill what is left of the service and holds GPU memory
    RESTART = "restart"  # the unit, as systemd stops it
    KILL = "kill"  # every process of the unit at once, then start it
    GIVE_UP = "give-up"  # say what is left to a person


_LADDERS: dict[Kind, tuple[Step, ...]] = {
    Kind.STOPPED_WORKER: (Step.CONTINUE, Step.RESTART, Step.KILL),
    Kind.CRASHED_RANK: (Step.RESTART, Step.KILL),
    Kind.STUCK_COLLECTIVE: (Step.RESTART, Step.KILL),
    Kind.STALLED_LOAD: (Step.RESTART, Step.KILL),
    Kind.STOPPED_DECODE: (Step.RESTART, Step.KILL),
    Kind.MEMORY_HELD: (Step.END_HOLDERS,),
    Kind.WEDGED_GPU: (),
}
_FOR_A_PERSON = {
    Kind.WEDGED_GPU: "Reset the GPU (sudo nvidia-smi --gpu-reset --id=INDEX, with nothing on it), or reboot the host.",
    Kind.MEMORY_HELD: "End the processes that hold the memory; where NVML names none, reset the GPU or reboot.",
}
_LAST = (
    "Read the evidence; the log's last lines and the stacks say where it stands. Start the unit by hand when mended."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A step that was taken. at: wall clock, seconds, for it outlives the watchdog. is_over: it was healthy since."""

    at: float
    kind: Kind
    step: Step
    is_over: bool = False

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Self:
        """As to_dict made it."""
        return cls(at=told["at"], kind=Kind(told["kind"]), step=Step(told["step"]), is_over=told["is_over"])

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"at": self.at, "kind": self.kind.value, "step": self.step.value, "is_over": self.is_over}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do and why. pids: whom the step is for."""

    step: Step
    reason: str
    pids: tuple[int, ...] = ()


def decide(found: Diagnosis, past: Sequence[Attempt], ours: Collection[int], now: float, limits: Limits) -> Decision:
    """The step for this diagnosis. past: all attempts, oldest first; ours: processes that were seen in the unit.

    A step that was tried since the service was last healthy is not tried again, whatever the trouble is called
    meanwhile, so that two diagnoses in turn cannot make a loop. All steps together are bounded too.
    """
    if not found.is_trouble:
        return Decision(step=Step.WAIT, reason=found.reason)
    open_ones = [one for one in past if not one.is_over]
    if open_ones and now - open_ones[-1].at < limits.settle_s:
        return Decision(step=Step.WAIT, reason=f"{open_ones[-1].step} was {now - open_ones[-1].at:.0f} s ago")
    if open_ones and open_ones[-1].step is Step.GIVE_UP:
        return Decision(step=Step.WAIT, reason="given up; a person is waited for")
    recent = [one for one in past if now - one.at < limits.window_s and one.step is not Step.GIVE_UP]
    if len(recent) >= limits.actions:
        return _give_up(found, f"{len(recent)} steps in {limits.window_s / 60:.0f} minutes")
    tried = {one.step for one in open_ones}
    for step in _LADDERS[found.kind]:
        pids = tuple(pid for pid in found.pids if pid in ours) if step is Step.END_HOLDERS else found.pids
        if step not in tried and (pids or step is not Step.END_HOLDERS):
            return Decision(step=step, reason=f"the least step not tried for {found.kind}", pids=pids)
    return _give_up(found, f"tried {', '.join(sorted(tried))}" if tried else "no step of ours helps")


def _give_up(found: Diagnosis, why: str) -> Decision:
    return Decision(step=Step.GIVE_UP, reason=f"{why}. {_FOR_A_PERSON.get(found.kind, _LAST)}")
