"""The errors an operator can act on, and the exit code of each.

AerieError            1  failed
├── UsageError        2  a wrong name, value or combination, found before anything ran
└── StepFailed        1  a step of a run ended without its evidence

A gate's stop (4) and a wait for a person (5) are results of a run, not errors.
"""

from typing import ClassVar

__all__ = ["AerieError", "StepFailed", "UsageError"]


class AerieError(Exception):
    """Something the operator can act on: where it is, what was seen, what was expected, what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, where: str, *, seen: object, expected: str, remedy: str) -> None:
        super().__init__(f"{where}: {seen!r}, expected {expected}. {remedy}")
        self.where, self.seen, self.expected, self.remedy = where, seen, expected, remedy
        self.parts: tuple[AerieError, ...] = (self,)  # more than one where several things are wrong at once

    def to_dict(self) -> dict[str, str]:
        """As JSON has it where a host answers; every value is text."""
        return {"where": self.where, "seen": str(self.seen), "expected": self.expected, "remedy": self.remedy}


class UsageError(AerieError):
    """A name, value or combination that cannot be right; nothing was started."""

    exit_code: ClassVar[int] = 2


class StepFailed(AerieError):
    """A step ended without its evidence: it failed, hung, ran out of time or was lost."""
