"""The order of a sweep over numbers of draft tokens, and the way back from wherever it ends.

The service cannot be two things at once, so the arms are measured one after the other, not in turn: a slow minute of
the machine falls on one of them. What served before is therefore measured first, and again once it is back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aerie.engines.benchmark.running import Measured
from aerie.errors import AerieError
from aerie.runbook import interrupts

__all__ = ["AGAIN", "Bench", "Walked", "arm_of", "walk"]

AGAIN = "-again"
INTERRUPTED = 130

Tell = Callable[[str], object]


class Bench(Protocol):
    """A service whose k can be changed and measured. Each raises AerieError where it fails."""

    def serve(self, tokens: int) -> None:
        """Make it serve with so many draft tokens."""

    def measure(self, tokens: int, arm: str) -> Measured:
        """Measure what serves, which is to be that, as the arm of this name."""

    def back(self) -> None:
        """Make it serve as before the sweep, wherever that stands; nothing to do where it does."""


@dataclass(slots=True, kw_only=True)
class Walked:
    """measured: by arm, in the order it was done. ended: what ended it early; left: why what served before does not."""

    measured: dict[str, Measured] = field(default_factory=dict)
    ended: BaseException | None = None
    left: str = ""

    @property
    def why(self) -> str:
        """What ended it, in words; "" where nothing did."""
        return _words(self.ended) if self.ended else ""

    @property
    def exit_code(self) -> int:
        """0 where all was done, 130 or 143 where a person ended it in order, else 1."""
        if isinstance(self.ended, KeyboardInterrupt) and not self.left:
            return int(getattr(self.ended, "exit_code", INTERRUPTED))
        return 1 if self.ended or self.left else 0


def arm_of(tokens: int) -> str:
    """ "k3"."""
    return f"k{tokens}"


def walk(present: int, others: Sequence[int], bench: Bench, tell: Tell, way_back: str) -> Walked:
    """Measure what serves, then every other k in its order, and go back; what served is measured again at the end.

    A k that does not come up, or cannot be measured, ends the sweep: the next one drafts more, and needs more. So does
    Ctrl-C. Whatever ends it, what served before is served again; where that fails it is told at once, with the command
    way_back. Errors of programming are raised, after the same way back.
    """
    walked = Walked()
    with interrupts.raised() as signals:
        try:
            walked.measured[arm_of(present)] = bench.measure(present, arm_of(present))
            for tokens in others:
                bench.serve(tokens)
                walked.measured[arm_of(tokens)] = bench.measure(tokens, arm_of(tokens))
        except (AerieError, KeyboardInterrupt) as error:
            walked.ended = error
            tell(f"ended early: {walked.why}")
        finally:
            signals.pass_one()
            walked.left = _back(bench, tell, way_back)
        if not walked.ended and not walked.left:
            again = arm_of(present) + AGAIN
            try:
                walked.measured[again] = bench.measure(present, again)
            except (AerieError, KeyboardInterrupt) as error:
                walked.ended = error
    return walked


def _back(bench: Bench, tell: Tell, way_back: str) -> str:
    """Why it did not succeed, "" where it did."""
    try:
        bench.back()
    except (AerieError, KeyboardInterrupt) as error:
        why = _words(error)
        tell(f"WHAT SERVED BEFORE DOES NOT SERVE: {why}\nIt is brought back by: {way_back}")
        return why
    return ""


def _words(error: BaseException) -> str:
    if isinstance(error, AerieError):
        return "\n".join(filter(None, (f"{error.where}: {error.seen}", error.remedy)))
    return str(error) or "interrupted"
