"""What the control experiment measured, read from its evidence: arms, their runs, medians with their spread."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import median
from typing import Self

from aerie.eagle3.gain import Gain, gain
from aerie.engines.acceptance import Acceptance
from aerie.errors import AerieError
from aerie.runbook.step import Json

__all__ = [
    "BASE",
    "BASE_FIXED",
    "DRAFTERS",
    "FORCED",
    "REFERENCE",
    "Control",
    "Divergence",
    "Run",
    "Spread",
    "forced_arm",
    "forced_length",
]

BASE = "base"  # no speculation, the held-out prompts
BASE_FIXED = "base-fixed"  # no speculation, the prompts and the fixed length of the forced arms
FORCED = "forced-"  # followed by the accept length that the engine was told to pretend
DRAFTERS = ("baseline", "finetuned")
REFERENCE = "reference"  # no speculation, the held-out prompts, on the other engine that this one is held against


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with the smallest and the largest value that it stands for, in the unit of the values."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """None for no values: not measured is not 0."""
        known = sorted(values)
        return cls(median=median(known), min=known[0], max=known[-1]) if known else None

    @classmethod
    def from_dict(cls, data: Mapping[str, float] | None) -> Self | None:
        return None if data is None else cls(median=data["median"], min=data["min"], max=data["max"])

    def to_dict(self) -> dict[str, float]:
        return {"median": self.median, "min": self.min, "max": self.max}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass of an arm over its prompts.

    tok_s_user: tokens after a request's first chunk over the time after it, one user (tokens per second).
    None, as tpot_ms, where every answer came in one chunk.
    tok_s: all tokens of all users over the wall time (tokens per second).
    acceptance: None without speculation.
    """

    repetition: int
    concurrency: int
    prompts: int
    tok_s_user: float | None
    tok_s: float | None
    ttft_ms: Mapping[str, float]
    tpot_ms: Mapping[str, float] | None
    acceptance: Acceptance | None

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Self:
        counters = data["counters"]
        return cls(
            repetition=data["repetition"],
            concurrency=data["concurrency"],
            prompts=data["prompts"],
            tok_s_user=data["tok_s_user"],
            tok_s=data["tok_s"],
            ttft_ms=data["ttft_ms"],
            tpot_ms=data["tpot_ms"],
            acceptance=None if counters is None else _acceptance(counters),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token at which an arm's greedy output left that of the base arm, for one prompt.

    gap_nats: how far the less likely of the two tokens is below the base arm's best; None where it was not scored.
    """

    arm: str
    prompt: str
    position: int
    gap_nats: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The evidence of the control step, as far as it is judged.

    arch: as the capability table calls the card, "cpu" without one, "" where the evidence does not say.
    model: the target as that table names it, "" where it does not.
    by_prompt: per drafter and prompt at the lowest concurrency; empty where the engine counts for the server alone.
    distinct_bigrams: of the plain answers, 0 to 1; None where it was not kept.
    """

    engine: str
    version: str
    arch: str
    model: str
    arms: Mapping[str, tuple[Run, ...]]
    divergences: tuple[Divergence, ...]
    repeats: Mapping[str, bool]
    client_cpu_share: float
    client_lag_ms: float
    client_bound: bool
    by_prompt: Mapping[str, Mapping[str, Acceptance]]
    distinct_bigrams: float | None

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Self:
        """Raises AerieError naming the key that is missing."""
        try:
            return cls(
                engine=data["engine"]["name"],
                version=data["engine"]["version"],
                arch=data["engine"].get("arch", ""),
                model=data.get("model", ""),
                arms={name: tuple(Run.from_dict(run) for run in arm["runs"]) for name, arm in data["arms"].items()},
                divergences=tuple(
                    Divergence(
                        arm=one["arm"],
                        prompt=str(one["prompt"]),
                        position=one["position"],
                        gap_nats=one["gap_nats"],
                    )
                    for one in data["divergences"]
                ),
                repeats=data["outputs_same_across_repetitions"],
                client_cpu_share=data["client"]["cpu_share"],
                client_lag_ms=data["client"]["loop_lag_p99_ms"],
                client_bound=data["client"]["bound"],
                # Evidence of an older run lacks these, and says no less for it.
                by_prompt={
                    arm: {prompt: _acceptance(counts) for prompt, counts in prompts.items()}
                    for arm, prompts in data.get("by_prompt", {}).items()
                },
                distinct_bigrams=data.get("distinct_bigrams"),
            )
        except KeyError as error:
            raise AerieError(
                "control evidence",
                seen=f"no key {error.args[0]}",
                expected="what aerie.eagle3.control writes",
                remedy="The evidence is from another version: run the control step again.",
            ) from error

    def runs(self, arm: str, concurrency: int = 1) -> tuple[Run, ...]:
        """The runs of one arm at one concurrency, one per repetition; empty where the arm was not run."""
        return tuple(run for run in self.arms.get(arm, ()) if run.concurrency == concurrency)

    def acceptance(self, arm: str, concurrency: int = 1) -> Acceptance | None:
        """Summed over repetitions, at concurrency 1 where the counters repeat exactly; None if nothing was verified."""
        seen = [run.acceptance for run in self.runs(arm, concurrency) if run.acceptance]
        total = reduce(add, seen) if seen else None
        return total if total and total.verify_steps else None

    def gain(self) -> Gain | None:
        """Of fine-tuning, over the prompts; None where the engine does not tell acceptance by request."""
        return gain(*(self.by_prompt.get(arm, {}) for arm in DRAFTERS))

    def speedups(self, arm: str, concurrency: int = 1, *, over: str = BASE) -> list[float]:
        """Per repetition, this arm over another of the same repetition: what ran close together is compared.

        One user's decode rate at concurrency 1; the rate of all users together above that.
        """
        base = {run.repetition: _rate(run) for run in self.runs(over, concurrency)}
        pairs = [(_rate(run), base.get(run.repetition)) for run in self.runs(arm, concurrency)]
        return [rate / plain for rate, plain in pairs if rate and plain]

    @property
    def forced(self) -> tuple[str, ...]:
        """The arms with a pretended accept length, shortest first."""
        return tuple(sorted((arm for arm in self.arms if arm.startswith(FORCED)), key=forced_length))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted({run.concurrency for run in self.arms.get(BASE, ())}))


def forced_arm(length: float) -> str:
    """The arm of one forced accept length: "forced-2.0" for 2."""
    return f"{FORCED}{length:.1f}"


def forced_length(arm: str) -> float:
    """2.0 for "forced-2.0"."""
    return float(arm.removeprefix(FORCED))


def _acceptance(counts: Mapping[str, Json]) -> Acceptance:
    return Acceptance(
        verify_steps=counts["verify_steps"],
        proposed=counts["proposed"],
        accepted=counts["accepted"],
        accepted_by_position=tuple(counts["accepted_by_position"]),
    )


def _rate(run: Run) -> float | None:
    return run.tok_s_user if run.concurrency == 1 else run.tok_s
