"""Acceptance of drafted tokens: the one definition, for every engine.

    accept length  τ = 1 + Σ accepted / V      tokens per verify step, bonus token included
    draft rate       = Σ accepted / Σ proposed
    by position i    = accepted at position i / V

Only counters or per-request sums make an Acceptance. A gauge cannot: SGLang up to 0.5.10 reports
τ / draft tokens as its accept rate, 0.70 where this definition gives 0.60 (its source, read).
"""

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from aerie.errors import AerieError

__all__ = ["Acceptance", "NotMeasured", "by_histogram", "tau_of"]


class NotMeasured(AerieError):
    """There was no verify step, so acceptance has no value; it is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Sums over verify steps; two of them add, so that a long request weighs as much as it is long.

    accepted_by_position[i]: verify steps that accepted the draft at position i, so never rising with i.
    """

    verify_steps: int
    proposed: int
    accepted: int
    accepted_by_position: tuple[int, ...]

    def __post_init__(self) -> None:
        by_position = self.accepted_by_position
        for seen, holds, expected in (
            (self.verify_steps, self.verify_steps >= 0, "verify steps of at least 0"),
            (self.accepted, 0 <= self.accepted <= self.proposed, f"accepted from 0 to proposed, {self.proposed}"),
            (list(by_position), sum(by_position) == self.accepted, f"positions that sum to accepted, {self.accepted}"),
            (
                list(by_position),
                list(by_position) == sorted(by_position, reverse=True)
                and all(0 <= count <= self.verify_steps for count in by_position),
                f"counts that never rise, from 0 to verify steps, {self.verify_steps}",
            ),
        ):
            if not holds:
                raise AerieError(
                    "acceptance",
                    seen=seen,
                    expected=expected,
                    remedy="The counters do not belong together: measure again on a server that nobody else uses.",
                )

    @classmethod
    def between(cls, before: Self, after: Self) -> Self:
        """What happened between two readings of the same server's counters. Raises if any went down."""
        by_position = tuple(
            later - (before.accepted_by_position[i] if i < len(before.accepted_by_position) else 0)
            for i, later in enumerate(after.accepted_by_position)
        )
        steps = after.verify_steps - before.verify_steps
        proposed, accepted = after.proposed - before.proposed, after.accepted - before.accepted
        if min(steps, proposed, accepted, *by_position) < 0:
            raise AerieError(
                "acceptance",
                seen=(before, after),
                expected="counters that only rise",
                remedy="The server was restarted between the readings: measure again.",
            )
        return cls(verify_steps=steps, proposed=proposed, accepted=accepted, accepted_by_position=by_position)

    def __add__(self, other: Self) -> "Acceptance":
        """Both together. A shorter list of positions counts as 0 at the positions it lacks."""
        mine, theirs = self.accepted_by_position, other.accepted_by_position
        length = max(len(mine), len(theirs))
        padded = [counts + (0,) * (length - len(counts)) for counts in (mine, theirs)]
        return Acceptance(
            verify_steps=self.verify_steps + other.verify_steps,
            proposed=self.proposed + other.proposed,
            accepted=self.accepted + other.accepted,
            accepted_by_position=tuple(a + b for a, b in zip(*padded, strict=True)),
        )

    @property
    def tau(self) -> float:
        """Accept length, tokens per verify step, at least 1. Raises NotMeasured without a verify step."""
        return 1 + self.accepted / self._measured(self.verify_steps, "verify steps")

    @property
    def rate(self) -> float:
        """Accepted share of the proposed drafts, 0 to 1. Raises NotMeasured without a proposal.

        With trees (top-k above 1) most proposals can never be accepted: compare τ only.
        """
        return self.accepted / self._measured(self.proposed, "proposed drafts")

    @property
    def by_position(self) -> tuple[float, ...]:
        """Per draft position, the share of verify steps that accepted it (unconditional)."""
        steps = self._measured(self.verify_steps, "verify steps")
        return tuple(count / steps for count in self.accepted_by_position)

    def up_to(self, drafts: int) -> "Acceptance":
        """The same verify steps with the first `drafts` positions alone, as another k is compared with."""
        kept = self.accepted_by_position[:drafts]
        return Acceptance(
            verify_steps=self.verify_steps,
            proposed=min(self.proposed, drafts * self.verify_steps),
            accepted=sum(kept),
            accepted_by_position=kept,
        )

    def to_dict(self) -> dict[str, int | list[int]]:
        """The counts as JSON, for evidence."""
        return {
            "verify_steps": self.verify_steps,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "accepted_by_position": list(self.accepted_by_position),
        }

    @staticmethod
    def _measured(count: int, what: str) -> int:
        if count == 0:
            raise NotMeasured(
                "acceptance",
                seen=f"0 {what}",
                expected="at least 1",
                remedy="Send requests longer than one token to a server that has a drafter.",
            )
        return count


def by_histogram(counts: Sequence[int], *, verify_steps: int, proposed: int, accepted: int) -> Acceptance:
    """Acceptance where an engine counts verify steps by the drafts that they accepted: counts[j] accepted j.

    The list may be cut after its last used entry (SGLang 0.5.16). Raises AerieError where it contradicts the sums.
    """
    by_position = tuple(sum(counts[position:]) for position in range(1, len(counts)))
    if sum(counts) != verify_steps:
        raise AerieError(
            "acceptance",
            seen=list(counts),
            expected=f"a histogram of {verify_steps} verify steps",
            remedy="The engine's counts do not belong together: report it with the engine's version.",
        )
    return Acceptance(verify_steps=verify_steps, proposed=proposed, accepted=accepted, accepted_by_position=by_position)


def tau_of(conditional: Sequence[float]) -> float:
    """τ that these shares by position are worth, each given that the drafts before it were accepted; bonus included."""
    tau: float = 1 + sum(itertools.accumulate(conditional, operator.mul))
    return tau
