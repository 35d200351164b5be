"""What fine-tuning gained: τ of the fine-tuned drafter over the baseline's, with an interval over the prompts.

Public fine-tunes of published drafters moved τ by 1 to 2 % (2.30 to 2.345, 2.285 to 2.308), and one of them lost on
other text: a fixed step up says nothing about so little. Prompts differ by far more than the drafters do, so each is
paired with itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from aerie.engines.acceptance import Acceptance
from aerie.engines.intervals import FEW, LEVEL, RESAMPLES, Ratio, tau_ratio
from aerie.runbook.step import Json

__all__ = ["Gain", "gain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """ratio: of the two τ, each from sums over the same prompts; prompts: how many of them."""

    ratio: Ratio
    prompts: int

    @property
    def is_proven(self) -> bool:
        """Is the whole interval above 1, over enough prompts to trust it?"""
        return self.prompts >= FEW and self.ratio.low > 1

    def is_short_of(self, ratio: float) -> bool:
        """Do the prompts prove that it is below `ratio`? What they leave open is no miss."""
        return self.ratio.high < ratio

    def __str__(self) -> str:
        few = f", fewer than {FEW}" if self.prompts < FEW else ""
        return (
            f"τ over the baseline's {self.ratio.value:.3f}, {self.ratio.low:.3f} to {self.ratio.high:.3f} "
            f"({LEVEL:.0%} of resamples of {self.prompts} prompts{few})"
        )

    def to_dict(self) -> dict[str, Json]:
        """As JSON: what it says, and how the interval was made."""
        return {
            **self.ratio.to_dict(),
            "prompts": self.prompts,
            "few": self.prompts < FEW,
            "proven": self.is_proven,
            "level": LEVEL,
            "resamples": RESAMPLES,
            "text": str(self),
        }


def gain(baseline: Mapping[str, Acceptance], finetuned: Mapping[str, Acceptance]) -> Gain | None:
    """The ratio of the two τ over the prompts that both have; None for none.

    By prompt, all repetitions together.
    """
    pairs = [
        (baseline[prompt], finetuned[prompt])
        for prompt in baseline
        if prompt in finetuned and baseline[prompt].verify_steps and finetuned[prompt].verify_steps
    ]
    if not pairs:
        return None
    return Gain(ratio=tau_ratio(pairs), prompts=len(pairs))
