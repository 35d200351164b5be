"""Which of two engines to serve with: what each made of the same drafters, and which way of serving is the fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerie.eagle3 import cost, diagnose, lossless
from aerie.eagle3.gain import gain
from aerie.eagle3.measured import BASE, DRAFTERS, REFERENCE, Control, Spread
from aerie.eagle3.suspects import ALIKE
from aerie.runbook.step import Context, Json

__all__ = ["compare", "doc", "run"]

WORDS = {BASE: "no drafter", "baseline": "the baseline drafter", "finetuned": "the fine-tuned drafter"}

doc = f"""\
Judge each engine by the same table (steps `cost`, `lossless` and `diagnose`), and put side by side

- the ways to serve: each engine without a drafter, with the baseline's and with the fine-tuned one, as a multiple of
  the first engine's rate without a drafter. A drafter whose outputs part as no rounding explains is no way to serve.
  The fastest for one user is the best where its slowest repetition beats the other engine's fastest one, else the two
  engines are not told apart and there is no reason to change. More users at once are told beside it;
- the acceptance of one drafter on both, which is the drafter's and the target's alone: where the prompts prove that
  it differs (or, where an engine tells it for the server only, τ is more than {ALIKE - 1:.0%} apart), the engine with
  the lower one loses it, and neither the training nor the drafter is at fault;
- the engines' outputs without a drafter. Kernels differ, so near ties part; more than that says that one of the two
  computes another model.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One engine's experiment. over: the arm whose rate is 1. judged: its cost, lossless and diagnosis evidence."""

    name: str
    control: Control
    over: str
    judged: Mapping[str, Json]

    @property
    def engine(self) -> dict[str, str]:
        return {"name": self.control.engine, "version": self.control.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to serve. gains: multiples of the first engine's plain rate, by concurrency."""

    side: _Side
    arm: str
    gains: Mapping[int, Spread]
    why_not: str

    def to_dict(self) -> dict[str, Json]:
        return {
            "engine": self.side.engine,
            "is_first": self.side.over == BASE,
            "arm": self.arm,
            "gains": {str(level): spread.to_dict() for level, spread in self.gains.items()},
            "why_not": self.why_not,
        }


def compare(first: Control, second: Control, judged: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The comparison as evidence. judged: of each engine its cost, lossless and diagnosis evidence, as `judge` has it.

    best: the way to serve one user that is the fastest; is_shown: beyond the spread against the other engine's best.
    """
    names = [f"{one.engine} {one.version}" for one in (first, second)]
    if names[0] == names[1]:  # one engine, served in two ways
        names[1] += " (second)"
    sides = [
        _Side(name=name, control=control, over=over, judged=found)
        for name, control, over, found in zip(names, (first, second), (BASE, REFERENCE), judged, strict=True)
    ]
    ways = [way for side in sides for way in _ways(side)]
    level = min(first.concurrencies)
    best, other = _best(ways, level)
    acceptance = {arm: told for arm in DRAFTERS if (told := _acceptance(sides, arm))}
    plain = _plain(second, judged[1]["lossless"]["near_tie_nats"])
    return {
        "engines": [{"engine": side.engine, **_figures(side)} for side in sides],
        "ways": [way.to_dict() for way in ways],
        "best": best.to_dict() if best else None,
        "is_shown": bool(best and other and best.gains[level].min > other.gains[level].max),
        "acceptance": acceptance,
        "plain": plain,
        "reasons": [*_speed(ways, sides), *(told["text"] for told in acceptance.values()), *_said(plain)],
    }


def judge(control: Control, evidence: Mapping[str, Mapping[str, Json]], values: Mapping[str, Json]) -> dict[str, Json]:
    """{cost, lossless, diagnose} of one engine. evidence: of the steps preflight, parity and finetune."""
    found = {"cost": cost.probe(control), "lossless": lossless.classify(control, values["lossless"]["near_tie_nats"])}
    shape = evidence["preflight"]["shape"]["name"]
    return {**found, "diagnose": diagnose.diagnose(diagnose.seen(control, {**evidence, **found}, values, shape))}


def run(context: Context) -> Mapping[str, Json]:
    """The comparison over the evidence of the steps before; touches no file and no engine."""
    evidence = {step: given.evidence for step, given in context.inputs.items()}
    told = evidence["control-second"]
    if not told["asked"]:
        return {"asked": False, "ran": False}
    if not told["ran"]:
        return {"asked": True, "ran": False, "engine": told["engine"], "why": told["why"]}
    first, second = Control.from_dict(evidence["control"]), Control.from_dict(told)
    judged = [judge(one, evidence, context.values) for one in (first, second)]
    return {"asked": True, "ran": True, **compare(first, second, judged)}


def _ways(side: _Side) -> list[_Way]:
    found = []
    for arm in (BASE, *DRAFTERS):
        gains = {
            level: spread
            for level in side.control.concurrencies
            if (spread := Spread.of(side.control.speedups(arm, level, over=side.over)))
        }
        if gains:
            found.append(_Way(side=side, arm=arm, gains=gains, why_not=_why_not(arm, side.judged["lossless"])))
    return found


def _why_not(arm: str, found: Mapping[str, Json]) -> str:
    if arm == BASE:
        return ""
    outputs = found["arms"][arm]["prompts"]
    gaps = [one["gap_nats"] for one in found["unexplained_at"] if one["arm"] == arm]
    if not lossless.is_path_wrong(gaps, outputs):
        return ""
    return f"{len(gaps)} of {outputs} outputs part from the plain ones as no rounding explains"


def _best(ways: Sequence[_Way], level: int) -> tuple[_Way | None, _Way | None]:
    """(The fastest way at this concurrency, the fastest of the other engine)."""
    sound = sorted(
        (way for way in ways if not way.why_not and level in way.gains), key=lambda way: -way.gains[level].median
    )
    if not sound:
        return None, None
    return sound[0], next((way for way in sound if way.side is not sound[0].side), None)


def _figures(side: _Side) -> dict[str, Json]:
    found = side.judged
    return {
        "verdict": found["diagnose"]["verdict"],
        "why": found["diagnose"]["reasons"][0],
        "tau": {arm: one.tau for arm in DRAFTERS if (one := side.control.acceptance(arm))},
        "R": found["cost"]["R_median"],
        "speedup": found["cost"]["measured"],
        "lossless": {key: found["lossless"][key] for key in ("prompts", "equal", "near_ties", "unexplained")},
    }


def _speed(ways: Sequence[_Way], sides: Sequence[_Side]) -> list[str]:
    """The fastest way for one user and for the most at once, against the other engine's fastest."""
    sentences = []
    levels = sides[0].control.concurrencies
    for level in dict.fromkeys((levels[0], levels[-1])):
        best, other = _best(ways, level)
        if best is None or other is None:
            continue
        users = "one user" if level == 1 else f"{level} at once"
        shown = "" if best.gains[level].min > other.gains[level].max else ": not told apart by these repetitions"
        sentences.append(
            f"for {users} {best.side.name} with {WORDS[best.arm]} gives {_times(best.gains[level])} of the rate of "
            f"{sides[0].name} with {WORDS[BASE]}, {other.side.name} with {WORDS[other.arm]} "
            f"{_times(other.gains[level])}{shown}"
        )
    return sentences


def _acceptance(sides: Sequence[_Side], arm: str) -> dict[str, Json] | None:
    """τ of one drafter on both engines, and which of them loses some of it."""
    first, second = (side.control.acceptance(arm) for side in sides)
    if first is None or second is None:
        return None
    paired = gain(*(side.control.by_prompt.get(arm, {}) for side in sides))
    ratio = paired.ratio.value if paired else second.tau / first.tau
    differs = paired.ratio.is_clear if paired else max(ratio, 1 / ratio) > ALIKE
    loser = sides[0 if ratio > 1 else 1] if differs else None
    return {
        "tau": [first.tau, second.tau],
        "loser": loser.engine if loser else None,
        "text": f"{WORDS[arm]} has τ {first.tau:.3f} on {sides[0].name} and {second.tau:.3f} on {sides[1].name}: "
        + (f"{loser.name} loses acceptance, which is no fault of the drafter" if loser else "alike"),
    }


def _plain(second: Control, near_tie_nats: float) -> dict[str, Json] | None:
    return lossless.of_arm(second, REFERENCE, near_tie_nats) if second.runs(REFERENCE) else None


def _said(plain: Mapping[str, Json] | None) -> list[str]:
    if plain is None:
        return []
    return [
        f"without a drafter both engines say the same for {plain['equal']} of {plain['prompts']} prompts, part at a "
        f"near tie for {plain['near_ties']}, and otherwise for {plain['unexplained']}"
    ]


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.min:.2f}–{spread.max:.2f})"
