"""Greedy outputs with and without speculation: equal, parted at a near tie, or unexplained."""

import math
from collections.abc import Mapping, Sequence

from aerie.eagle3.measured import DRAFTERS, Control, Divergence
from aerie.runbook.step import Context, Json, Verdict, go, stop

__all__ = ["FAR_NATS", "FEW", "classify", "doc", "gate", "is_path_wrong", "of_arm", "run"]

# Kernels of another batch shape part bf16 logits by a few steps of their grid, which is 0.06 between 8 and 16: 0.19 was
# the most in 80 outputs on an H200. Another text is nats away, and a wrong verify path writes it at many prompts.
FAR_NATS = 1.0
FEW = 0.05  # of the outputs
SHOWN = 5  # divergences named in the gate's reasons; the evidence lists all

doc = f"""\
Speculation must not change what a greedy decode says. For each held-out prompt compare the token ids of the server
with a drafter and of the server without one (both at temperature 0 and concurrency 1), and find the first token that
differs. There, ask the plain server for its log probabilities after the common prefix: the gap is how far the less
likely of the two tokens lies below the best one.

- no difference: **equal**
- a gap of at most `lossless.near_tie_nats`: **near tie**. bf16 kernels of different batch
  shapes round differently, and plain decoding at another concurrency parts there as well (35 of 40 prompts equal,
  gaps 0 to 0.0625 nats: the facts)
- any wider gap, or a gap that could not be scored: **unexplained**

Where more than {FEW:.0%} of the outputs are unexplained, or one by {FAR_NATS:g} nats or more or by a gap that could not
be scored, the verify path accepts what it should not: stop. Fewer and smaller ones are suspicious: the run goes on,
and the diagnosis does not call it healthy.
"""


def classify(control: Control, near_tie_nats: float) -> dict[str, Json]:
    """The lossless evidence: one prompt counts once per drafter."""
    arms = {arm: of_arm(control, arm, near_tie_nats) for arm in DRAFTERS if control.runs(arm)}
    totals = {key: sum(arm[key] for arm in arms.values()) for key in ("prompts", "equal", "near_ties", "unexplained")}
    return {
        "near_tie_nats": near_tie_nats,
        "arms": arms,
        **totals,
        "unexplained_at": [
            {"arm": one.arm, "prompt": one.prompt, "position": one.position, "gap_nats": one.gap_nats}
            for one in control.divergences
            if one.arm in arms and not _is_near_tie(one, near_tie_nats)
        ],
    }


def run(context: Context) -> Mapping[str, Json]:
    """The classification of the control step's divergences; touches no file and no engine."""
    return classify(Control.from_dict(context.inputs["control"].evidence), context.values["lossless"]["near_tie_nats"])


def is_path_wrong(gaps: Sequence[float | None], outputs: int) -> bool:
    """Whether so many of the outputs part beyond a near tie, or one so far, that no rounding explains it.

    gaps: of those that do, in nats; None where it could not be scored, which counts as far.
    """
    return any(gap is None or gap >= FAR_NATS for gap in gaps) or len(gaps) > FEW * outputs


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Stop where outputs part so often, or so far, that the verify path must be wrong."""
    if not evidence["unexplained"]:
        return go(
            f"{evidence['equal']} of {evidence['prompts']} outputs equal, {evidence['near_ties']} part at a near tie"
        )
    places = evidence["unexplained_at"]
    named = [
        f"{one['arm']}, prompt {one['prompt']}: parts at token {one['position']}, "
        + ("gap not scored" if one["gap_nats"] is None else f"gap {one['gap_nats']:.3f} nats")
        + f", allowed {evidence['near_tie_nats']:g}"
        for one in places[:SHOWN]
    ]
    if len(places) > SHOWN:
        named.append(f"and {len(places) - SHOWN} more: unexplained_at in the evidence")
    said = f"{evidence['unexplained']} of {evidence['prompts']} outputs part without a near tie"
    if is_path_wrong([one["gap_nats"] for one in places], evidence["prompts"]):
        return stop(said, *named)
    return go(f"{said}, few and by little: suspicious, for the diagnosis to weigh", *named)


def of_arm(control: Control, arm: str, near_tie_nats: float) -> dict[str, Json]:
    """Of one arm how many outputs equal the base's, part at a near tie, or otherwise; each prompt counts once."""
    # A prompt is judged by its widest gap: sorted last, it is the one that stays.
    mine = sorted((one for one in control.divergences if one.arm == arm), key=_width)
    places = {one.prompt: one for one in mine}
    near = [one for one in places.values() if _is_near_tie(one, near_tie_nats)]
    prompts = max(run.prompts for run in control.runs(arm))
    return {
        "prompts": prompts,
        "equal": prompts - len(places),
        "near_ties": len(near),
        "unexplained": len(places) - len(near),
        "gaps_nats": sorted(one.gap_nats for one in places.values() if one.gap_nats is not None),
    }


def _width(one: Divergence) -> float:
    return math.inf if one.gap_nats is None else one.gap_nats


def _is_near_tie(one: Divergence, near_tie_nats: float) -> bool:
    return _width(one) <= near_tie_nats
