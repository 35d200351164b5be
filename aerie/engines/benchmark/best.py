"""Which number of draft tokens is the fastest, at every temperature and concurrency, and how sure that is. Pure.

By the time of a whole request over its tokens, each prompt compared with itself. Not by the time per token after the
first chunk: vLLM 0.32.0 handed out all tokens of a tiny model at once, but only without a drafter, so that k = 0 was
293 times as fast by it, and slower in truth (2026-11-30).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.engines.benchmark.comparison import Comparison, compare
from aerie.engines.benchmark.running import Level
from aerie.engines.intervals import FEW, Ratio

__all__ = ["Choice", "Sweep", "choose", "drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The fastest arm at one temperature and concurrency. Ratios are of times of whole requests per token, over its
    own: above 1, it is that many times as fast.

    over_smallest: of the smallest k, None where that is the best one; next: the second fastest, "" of a single arm.
    tied: arms that noise, or the drift of the machine, may have made slower; none of them is proven to be.
    """

    temperature: float
    concurrency: int
    best: str
    smallest: str
    over_smallest: Ratio | None
    next: str
    over_next: Ratio | None
    tied: tuple[str, ...]

    @property
    def is_clear(self) -> bool:
        """Is it proven that the best one is faster than every other?"""
        return not self.tied

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "temperature": self.temperature,
            "concurrency": self.concurrency,
            "best": self.best,
            "smallest": self.smallest,
            "over_smallest": self.over_smallest.to_dict() if self.over_smallest else None,
            "next": self.next,
            "over_next": self.over_next.to_dict() if self.over_next else None,
            "tied": list(self.tied),
            "clear": self.is_clear,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """How a host's service of a model was measured with several numbers of draft tokens, and what came of it.

    order: arms as they were measured, one after the other; present: the arm that served before, and serves again unless
    `left` says why not; again: its second measurement, "" where there is none. settings: by arm, the command that
    serves it; way_back: the one that leads back. ended: why not all was measured, "" where it was.
    """

    host: str
    model: str
    drafter: str
    order: tuple[str, ...]
    present: str
    again: str
    drift: tuple[Comparison, ...]
    choices: tuple[Choice, ...]
    settings: Mapping[str, str]
    way_back: str
    ended: str
    left: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **{name: getattr(self, name) for name in ("host", "model", "drafter", "present", "again")},
            "order": list(self.order),
            "drift": [one.to_dict() for one in self.drift],
            "choices": [one.to_dict() for one in self.choices],
            **{name: getattr(self, name) for name in ("way_back", "ended", "left")},
            "settings": dict(self.settings),
        }


def drift(levels: Sequence[Level], present: str, again: str) -> tuple[Comparison, ...]:
    """The second measurement of the same service against the first, at every level; none where it was not taken."""
    first, second = (_of(levels, arm) for arm in (present, again))
    return compare([*first, *second]) if first and second else ()


def choose(
    levels: Sequence[Level], tokens: Mapping[str, int], drifts: Sequence[Comparison], present: str = ""
) -> tuple[Choice, ...]:
    """The best arm of each level. tokens: k by arm, of those to choose from; drifts: as `drift` gives them.

    present: wins a tie to the last digit, for it needs no change. An arm without an answer at a level is left out
    there; so is a level at which fewer than two arms are left.
    """
    found = []
    for temperature, concurrency in dict.fromkeys((one.temperature, one.concurrency) for one in levels):
        here = [one for one in levels if (one.temperature, one.concurrency) == (temperature, concurrency)]
        moved = next((one for one in drifts if (one.temperature, one.concurrency) == (temperature, concurrency)), None)
        arms = sorted((arm for arm in tokens if _answers(here, arm)), key=lambda arm: tokens[arm])
        if choice := _choice(here, arms, moved, present):
            found.append(choice)
    return tuple(found)


def _choice(levels: Sequence[Level], arms: Sequence[str], moved: Comparison | None, present: str) -> Choice | None:
    if len(arms) < 2:
        return None
    first = arms[0]
    over_first = {arm: pair.e2e_token for arm in arms[1:] if (pair := _pair(levels, first, arm)).e2e_token}
    if not over_first:
        return None
    times = {first: 1.0} | {arm: ratio.value for arm, ratio in over_first.items() if ratio}
    best, *others = sorted(times, key=lambda arm: (times[arm], arm != present))
    against = {arm: _pair(levels, best, arm) for arm in others}
    return Choice(
        temperature=levels[0].temperature,
        concurrency=levels[0].concurrency,
        best=best,
        smallest=first,
        over_smallest=against[first].e2e_token if first != best else None,
        next=others[0],
        over_next=against[others[0]].e2e_token,
        tied=tuple(arm for arm in others if not _is_proven(against[arm], moved)),
    )


def _is_proven(slower: Comparison, moved: Comparison | None) -> bool:
    """Is the other arm slower by more than its interval, and by more than the machine moved meanwhile?"""
    ours, machines = slower.e2e_token, moved.e2e_token if moved else None
    if ours is None or machines is None or slower.prompts < FEW:
        return False
    return ours.low > 1 and math.log(ours.value) > abs(math.log(machines.value))


def _pair(levels: Sequence[Level], first: str, other: str) -> Comparison:
    (pair,) = compare([*_of(levels, first), *_of(levels, other)])
    return pair


def _answers(levels: Sequence[Level], arm: str) -> bool:
    return any(not taken.answer.error for level in _of(levels, arm) for taken in level.taken)


def _of(levels: Sequence[Level], arm: str) -> list[Level]:
    return [one for one in levels if one.arm == arm]
