"""Two arms compared on the same prompts, with intervals by bootstrap over the prompts. Pure and repeatable.

Prompts differ by far more than the arms do, so each is paired with itself: the ratio of its geometric means over the
repetitions, and of those ratios the geometric mean.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.engines.benchmark.asking import Answer
from aerie.engines.benchmark.figures import tpot_s
from aerie.engines.benchmark.running import Level
from aerie.engines.intervals import FEW, Ratio, interval

__all__ = ["Comparison", "compare"]

TIMES = ("ttft", "tpot", "e2e", "e2e_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`other` against `first` at one temperature and concurrency. Ratios are of times: below 1 is faster.

    prompts: pairs that both answered. e2e_token: a whole request's time over its tokens, which neither the length of
    an answer changes nor that a server hands tokens out in bursts. same_outputs: share of pairs with the same text in
    every repetition of both; None at a temperature above 0, where they differ anyway.
    """

    first: str
    other: str
    temperature: float
    concurrency: int
    prompts: int
    ttft: Ratio | None
    tpot: Ratio | None
    e2e: Ratio | None
    e2e_token: Ratio | None
    same_outputs: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "first": self.first,
            "other": self.other,
            "temperature": self.temperature,
            "concurrency": self.concurrency,
            "prompts": self.prompts,
            "few": self.prompts < FEW,
            **{name: one.to_dict() if (one := getattr(self, name)) else None for name in TIMES},
            "same_outputs": None if self.same_outputs is None else round(self.same_outputs, 4),
        }


def compare(levels: Sequence[Level]) -> tuple[Comparison, ...]:
    """Every arm but the first against it, at every temperature and concurrency."""
    arms = list(dict.fromkeys(level.arm for level in levels))
    places = dict.fromkeys((level.temperature, level.concurrency) for level in levels)
    found = []
    for temperature, concurrency in places:
        here = [one for one in levels if (one.temperature, one.concurrency) == (temperature, concurrency)]
        by_arm = {arm: _by_prompt([level for level in here if level.arm == arm]) for arm in arms}
        found += [_compare(by_arm, arms[0], other, temperature, concurrency) for other in arms[1:]]
    return tuple(found)


def _by_prompt(levels: Sequence[Level]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for level in levels:
        for taken in level.taken:
            if not taken.answer.error:
                found.setdefault(taken.question, []).append(taken.answer)
    return found


def _compare(
    by_arm: dict[str, dict[str, list[Answer]]], first: str, other: str, temperature: float, concurrency: int
) -> Comparison:
    pairs = [(answers, by_arm[other][name]) for name, answers in by_arm[first].items() if name in by_arm[other]]
    same = [len({answer.text_sha256 for answer in (*ours, *theirs)}) == 1 for ours, theirs in pairs]
    return Comparison(
        first=first,
        other=other,
        temperature=temperature,
        concurrency=concurrency,
        prompts=len(pairs),
        ttft=_ratio(pairs, lambda answer: answer.ttft_s),
        tpot=_ratio(pairs, tpot_s),
        e2e=_ratio(pairs, lambda answer: answer.e2e_s),
        e2e_token=_ratio(pairs, lambda answer: answer.e2e_s / max(answer.output_tokens, 1)),
        same_outputs=statistics.fmean(same) if same and temperature == 0 else None,
    )


def _ratio(pairs: Sequence[tuple[list[Answer], list[Answer]]], of: Callable[[Answer], float | None]) -> Ratio | None:
    logs = []
    for ours, theirs in pairs:
        sides = [[math.log(value) for answer in side if (value := of(answer))] for side in (ours, theirs)]
        if all(sides):
            logs.append(statistics.fmean(sides[1]) - statistics.fmean(sides[0]))
    if not logs:
        return None
    low, high = interval(logs, statistics.fmean)
    return Ratio(value=math.exp(statistics.fmean(logs)), low=math.exp(low), high=math.exp(high))
