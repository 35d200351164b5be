"""When a training has gained all that its held-out samples show, and which of its evaluations was the best one.

Nothing here but the evaluations counts, and the trainer's log has them: an attempt that was killed decides alike again.
"""

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Enough", "Evaluation", "Patience", "best", "ended_early"]

Evaluation = tuple[int, Sequence[float]]  # (step, accuracy by draft position on the held-out samples)


class Enough(Exception):
    """Ends the trainer's processes, with no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """evaluations: so many in a row without a gain end a training, 1 or more; least_gain: of τ, over the last one that
    gained: what is less counts as none, until several of them together reach it.
    """

    evaluations: int
    least_gain: float = 0.0


def best(evaluations: Sequence[Evaluation]) -> int | None:
    """The step of the evaluation with the highest τ, of equal ones the first; None of none.

    The trainer keeps the checkpoint of this very one (SpecForge 0.2.0, training/checkpoint.py, read).
    """
    return max(evaluations, key=lambda one: _drafted(one[1]))[0] if evaluations else None


def ended_early(evaluations: Sequence[Evaluation], patience: Patience | None, steps: int) -> int | None:
    """The step of the evaluation that ends the training before its last step, `steps`; None for none."""
    if patience is None:
        return None
    reached, without = 0.0, 0
    for number, (step, accuracy) in enumerate(evaluations):
        tau = _drafted(accuracy)
        if number == 0 or (tau > reached and tau - reached >= patience.least_gain):
            reached, without = tau, 0
        else:
            without += 1
        if without == patience.evaluations and step < steps:
            return step
    return None


def _drafted(accuracy: Sequence[float]) -> float:
    # τ but for its bonus token, to the last bit as the trainer adds it up: a sum of 1 more would make equal ones.
    drafted: float = sum(itertools.accumulate(accuracy, operator.mul))
    return drafted
