"""What the diagnosis looks at: the measurements of a run, and what its profile asks of the drafter."""

from collections.abc import Mapping
from dataclasses import dataclass

from aerie.eagle3.gain import Gain
from aerie.eagle3.measured import Spread
from aerie.eagle3.suspects import Setting
from aerie.engines.acceptance import Acceptance

__all__ = ["Expectation", "Seen"]

# Verify steps behind a rate before it is judged: below this one standard error exceeds 0.09.
STEPS_MIN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the profile asks of the fine-tuned drafter on this target shape (accept lengths)."""

    tau_min: float
    tau_ratio_min: float
    tau_margin_min: float

    def misses(self, baseline: Acceptance, finetuned: Acceptance, gain: Gain | None = None) -> list[str]:
        """One clause for each part that is not reached; empty where all are.

        gain: where it is measured its interval is held against the ratio, and the fixed margin against nothing.
        """
        parts = [("τ", finetuned.tau, self.tau_min)]
        if gain is None:
            parts += [
                ("τ over the baseline's", finetuned.tau / baseline.tau, self.tau_ratio_min),
                ("τ above the baseline's by", finetuned.tau - baseline.tau, self.tau_margin_min),
            ]
        missed = [f"{what} {seen:.3f}, expected at least {least:g}" for what, seen, least in parts if seen < least]
        if gain is not None and gain.is_short_of(self.tau_ratio_min):
            missed.append(f"{gain}, expected to reach {self.tau_ratio_min:g}")
        return missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything the table looks at. None is "not measured", never 0.

    parted: of the outputs that part beyond a near tie, the gaps in nats; a gap of None could not be scored.
    outputs: that were compared.
    accuracy: the trainer's own share of right guesses per draft position, of the fine-tuned drafter, on samples that it
    did not train on. One of a training batch is no measure of serving: a small corpus is soon known by heart.
    cost: R, plain steps per verify step. speedup, predicted: of the fine-tuned drafter at concurrency 1.
    forced: accept length by counters for each accept length that was forced.
    gain: where the engine tells acceptance by request. setting: what was served where, as far as it is known.
    """

    expectation: Expectation
    parity_limit: float
    parity_mean: float | None = None
    parity_max: float | None = None
    parted: tuple[float | None, ...] | None = None
    outputs: int = 0
    baseline: Acceptance | None = None
    finetuned: Acceptance | None = None
    accuracy: tuple[float, ...] = ()
    cost: float | None = None
    speedup: Spread | None = None
    predicted: Spread | None = None
    forced: Mapping[float, float] | None = None
    gain: Gain | None = None
    setting: Setting | None = None

    def misses(self) -> list[str] | None:
        """Parts of the expectation that are not reached; None while a drafter is not measured."""
        if self.baseline is None or self.finetuned is None:
            return None
        return self.expectation.misses(self.baseline, self.finetuned, self.gain)

    def served(self) -> list[tuple[int, float, float]]:
        """(position from 1, served acceptance given that the positions before were accepted, trained accuracy).

        The trainer judges each position after the answer's own tokens, so its accuracy is of that kind too, and not of
        `Acceptance.by_position`, which counts every verify step. Serving sees easier places: where those before hit.
        """
        if self.finetuned is None:
            return []
        steps = (self.finetuned.verify_steps, *self.finetuned.accepted_by_position)
        return [
            (i + 1, steps[i + 1] / steps[i], trained)
            for i, trained in enumerate(self.accuracy[: len(steps) - 1])
            if steps[i] >= STEPS_MIN
        ]
