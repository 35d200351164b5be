"""Percentiles, and intervals by bootstrap over what was measured in pairs. Pure and repeatable."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aerie.engines.acceptance import Acceptance

__all__ = ["FEW", "LEVEL", "RESAMPLES", "Ratio", "interval", "percentile", "tau_ratio"]

RESAMPLES = 2000
LEVEL = 0.95  # share of the resamples within an interval
FEW = 12  # items; below that an interval is shown and called too few to trust

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The other arm's value over the first one's; low and high hold 95 % of the resamples."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Does the interval leave out 1?"""
        return not self.low <= 1 <= self.high

    def to_dict(self) -> dict[str, float | bool]:
        """As JSON."""
        return {
            "ratio": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "clear": self.is_clear,
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile, a value that was measured: the smallest with `share` of all at or below it."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def interval(items: Sequence[Item], statistic: Callable[[Sequence[Item]], float]) -> tuple[float, float]:
    """(low, high) of a statistic over resamples of the items, drawn with replacement, each as many as there are.

    items: one for each prompt, at least 1. LEVEL of the RESAMPLES lie within; the draws are the same at every call.
    """
    draw = random.Random(0)  # the same numbers give the same interval
    values = [statistic(draw.choices(items, k=len(items))) for _ in range(RESAMPLES)]
    return percentile(values, 0.025), percentile(values, 0.975)


def tau_ratio(pairs: Sequence[tuple[Acceptance, Acceptance]]) -> Ratio:
    """τ of the second ones over τ of the first; pairs: of one prompt each, at least 1, all with verify steps.

    A resample draws prompts, and takes the sums of both over the same draw: a long answer weighs as much as it is long.
    """
    low, high = interval(pairs, _of_sums)
    return Ratio(value=_of_sums(pairs), low=low, high=high)


def _of_sums(pairs: Sequence[tuple[Acceptance, Acceptance]]) -> float:
    before, after = (
        1 + sum(pair[side].accepted for pair in pairs) / sum(pair[side].verify_steps for pair in pairs)
        for side in (0, 1)
    )
    return after / before
