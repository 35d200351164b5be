"""Where a bad result comes from: extraction, training, integration or engine cost, by a written table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aerie.eagle3.lossless import FAR_NATS, FEW, is_path_wrong
from aerie.eagle3.measured import Control, Spread
from aerie.eagle3.seen import Expectation, Seen
from aerie.eagle3.suspects import ALIKE, Setting, suspects
from aerie.runbook.step import Context, Json

__all__ = ["RULES", "Rule", "diagnose", "doc", "run", "seen"]

UNDETERMINED = "undetermined"
NOT_FINE_TUNING = "not-the-fine-tuning"

# A correct run's worst position is 0.041 away, its bf16 reference 0.065 (measured, eagle3 facts 8.1): ten times that is
# another token's state, not rounding.
OUTLIER_REL = 0.5
# The trainer judges every position of the samples it did not train on, serving those where it starts anew after each
# miss: a healthy drafter serves near that accuracy. Half of it is not a matter of text.
SERVED_SHARE_MIN = 0.5
# Deterministic forced lengths come out exact (2.000, 3.000: vLLM and SGLang); random ones within 1 % at 1,500 steps.
FORCED_TOLERANCE = 0.05
# R of a healthy engine at k = 3: 1.6 to 1.8 on two CPU cores, 2.17 on an H200 with a small target (measured).
ORDINARY_R = 2.2
# Predictions by forced τ missed by up to 25 % on a correct run (measured): a third less is another cause.
PREDICTED_SHARE_MIN = 2 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. holds: None where the row cannot be judged. seen: the numbers it looked at, for a person."""

    id: str
    condition: str
    verdict: str
    why: str
    holds: Callable[[Seen], bool | None]
    seen: Callable[[Seen], str]


def _parity_mean(s: Seen) -> bool | None:
    return None if s.parity_mean is None else s.parity_mean >= s.parity_limit


def _parity_outlier(s: Seen) -> bool | None:
    return None if s.parity_max is None else s.parity_max >= OUTLIER_REL


def _outputs_part(s: Seen) -> bool | None:
    return None if s.parted is None else is_path_wrong(s.parted, s.outputs)


def _outputs_suspicious(s: Seen) -> bool | None:
    return None if s.parted is None else bool(s.parted) and not _outputs_part(s)


def _forced_missed(s: Seen) -> bool | None:
    if not s.forced:
        return None
    return any(abs(tau / length - 1) > FORCED_TOLERANCE for length, tau in s.forced.items())


def _served_below_trained(s: Seen) -> bool | None:
    served = s.served()
    return any(rate < SERVED_SHARE_MIN * trained for _, rate, trained in served) if served else None


def _expectation_missed(s: Seen) -> bool | None:
    misses = s.misses()
    if misses is None or not s.served():
        # Without the trainer's accuracy a low τ may come from training or from serving.
        return False if misses == [] else None
    return bool(misses) and not _served_below_trained(s)


def _control_alike(s: Seen) -> bool | None:
    if s.baseline is None or s.finetuned is None:
        return None
    gained = s.gain.is_proven if s.gain else s.finetuned.tau > ALIKE * s.baseline.tau
    # With the trainer's accuracy at hand the rows above have told training from integration.
    return bool(s.misses()) and s.baseline.tau < s.expectation.tau_min and not gained and not s.served()


def _slower(s: Seen) -> bool | None:
    return None if s.speedup is None else s.speedup.median < 1


def _below_prediction(s: Seen) -> bool | None:
    if s.speedup is None or s.predicted is None:
        return None
    return bool(_slower(s)) and s.speedup.median < PREDICTED_SHARE_MIN * s.predicted.median


def _too_weak_for_any(s: Seen) -> bool | None:
    if s.speedup is None or s.finetuned is None or s.cost is None or not s.served():
        return None
    # A τ that misses the expectation has a cause of its own, known or not: the rows above speak of it.
    meets = s.misses() == []
    return bool(meets and _slower(s) and s.finetuned.tau < ORDINARY_R and s.cost <= ORDINARY_R)


def _healthy(s: Seen) -> bool | None:
    if s.parity_mean is None or s.parted is None or s.speedup is None or s.misses() is None:
        return None
    return not (_parity_mean(s) or _parity_outlier(s) or s.parted or s.misses() or _slower(s))


def _number(value: float | None, form: str = ".3f") -> str:
    return "not measured" if value is None else format(value, form)


def _parity_seen(s: Seen) -> str:
    mean, largest = _number(s.parity_mean, ".4f"), _number(s.parity_max, ".4f")
    return f"parity mean {mean} (limit {s.parity_limit:g}), max {largest}"


def _parted_seen(s: Seen) -> str:
    if s.parted is None:
        return "outputs with and without a drafter not compared"
    scored = [gap for gap in s.parted if gap is not None]
    said = f"{len(s.parted)} of {s.outputs} outputs part beyond a near tie"
    said += f", by up to {max(scored):.3f} nats" if scored else ""
    unscored = len(s.parted) - len(scored)
    return said + (f", {unscored} of them not scored" if unscored else "")


def _forced_seen(s: Seen) -> str:
    pairs = [f"forced {length:g}, counted {tau:.3f}" for length, tau in (s.forced or {}).items()]
    return "; ".join(pairs) or "no forced accept length"


def _served_seen(s: Seen) -> str:
    parts = [f"position {i}: served {rate:.3f}, trained {trained:.3f}" for i, rate, trained in s.served()]
    return "; ".join(parts) or "trainer's accuracy on held-out samples or served positions not measured"


def _tau_seen(s: Seen) -> str:
    drafters = [
        f"{name} τ {one.tau:.3f}, rate {one.rate:.3f}" if one else f"{name} not measured"
        for name, one in (("baseline", s.baseline), ("fine-tuned", s.finetuned))
    ]
    return "; ".join([*drafters, *(s.misses() or [])])


def _speed_seen(s: Seen) -> str:
    measured = f"{s.speedup.median:.2f} ({s.speedup.min:.2f}–{s.speedup.max:.2f})" if s.speedup else "not measured"
    tau = s.finetuned.tau if s.finetuned else None
    predicted = s.predicted.median if s.predicted else None
    return f"S {measured}, τ/R {_number(predicted, '.2f')}, τ {_number(tau)}, R {_number(s.cost, '.2f')}"


# In order: the first row that holds gives the verdict. A row may lean on those above it: wrong states make every
# number after them moot, a wrong verify path makes acceptance moot, and cost is blamed only for a drafter that serves
# as well as it trained.
RULES = (
    Rule(
        id="parity-mean",
        condition="mean relative error of the hidden states is at or above parity.max_mean_rel",
        verdict="extraction",
        why="the engine's states are not the model's: what was trained on them learnt something else, and the engine's "
        "own forward pass may be wrong. Acceptance and speed say nothing before this is repaired",
        holds=_parity_mean,
        seen=_parity_seen,
    ),
    Rule(
        id="parity-outlier",
        condition=f"a single position is {OUTLIER_REL:g} or more away although the mean is good",
        verdict="extraction",
        why="that is no rounding but another token's state: look at the first and last positions of each sample",
        holds=_parity_outlier,
        seen=_parity_seen,
    ),
    Rule(
        id="outputs-part",
        condition=f"more than {FEW:.0%} of the greedy outputs part from the plain ones beyond a near tie, or "
        f"one by {FAR_NATS:g} nats or more",
        verdict="integration",
        why="greedy verification gives the target's own text whatever the drafter proposes: the verify path is wrong",
        holds=_outputs_part,
        seen=_parted_seen,
    ),
    Rule(
        id="forced-length-missed",
        condition=f"counters miss a forced accept length by more than {FORCED_TOLERANCE:.0%}",
        verdict="integration",
        why="the engine does not accept what it is told to accept, or does not count it: no acceptance here is true",
        holds=_forced_missed,
        seen=_forced_seen,
    ),
    Rule(
        id="served-below-trained",
        condition=f"at a draft position, serving accepts less than {SERVED_SHARE_MIN:g} of what the trainer measured "
        "on samples that it did not train on",
        verdict="integration",
        why="the drafter can predict this target from these states, and loses it when served: layer ids, norm, "
        "vocabulary map, positions or the order of states differ between trainer and engine",
        holds=_served_below_trained,
        seen=_served_seen,
    ),
    Rule(
        id="expectation-missed",
        condition="τ misses the profile's expectation and serving reaches what the trainer measured",
        verdict="training",
        why="the drafter serves as well as it was trained, and that is not enough: data, epochs, learning rate or "
        "the drafter it started from",
        holds=_expectation_missed,
        seen=lambda s: f"{_tau_seen(s)}; {_served_seen(s)}",
    ),
    Rule(
        id="control-alike",
        condition="both drafters miss the expected τ, the fine-tuned one serves as the baseline does "
        f"(no proven gain, or τ within {ALIKE - 1:.0%} where prompts are not told apart), and the trainer's accuracy "
        "is not known",
        verdict=NOT_FINE_TUNING,
        why="what both drafters share is at fault: the engine's integration, its cost, or a model that neither was "
        "made for. From scratch on few samples such a τ needs no fault (a published example has 1.45); a published "
        "drafter does not begin there",
        holds=_control_alike,
        seen=lambda s: f"{_tau_seen(s)}; {_speed_seen(s)}",
    ),
    Rule(
        id="slower-than-predicted",
        condition=f"slower than no speculation, and below {PREDICTED_SHARE_MIN:.2f} of τ/R",
        verdict="engine-cost",
        why="time goes where the forced run did not spend it: scheduling, sampling or the drafter's own pass",
        holds=_below_prediction,
        seen=_speed_seen,
    ),
    Rule(
        id="too-weak-for-any-engine",
        condition=f"slower than no speculation, τ as expected yet below {ORDINARY_R:g}, and R no higher than that",
        verdict="training",
        why="R is what a healthy engine costs; with this τ no ordinary engine could win",
        holds=_too_weak_for_any,
        seen=_speed_seen,
    ),
    Rule(
        id="cost-above-acceptance",
        condition="slower than no speculation although τ meets the expectation",
        verdict="engine-cost",
        why="a verify step costs more plain steps (R) than it yields tokens (τ)",
        holds=lambda s: None if (slower := _slower(s)) is None or s.misses() is None else slower and not s.misses(),
        seen=_speed_seen,
    ),
    Rule(
        id="outputs-suspicious",
        condition="few greedy outputs part beyond a near tie, none of them far",
        verdict=UNDETERMINED,
        why="rounding of another batch shape does that, and a verify path that is wrong at times does too: compare "
        "more prompts, and plain outputs at another concurrency",
        holds=_outputs_suspicious,
        seen=_parted_seen,
    ),
    Rule(
        id="all-good",
        condition="parity, losslessness and τ as expected, and not slower than no speculation",
        verdict="healthy",
        why="states, outputs, acceptance and speed agree",
        holds=_healthy,
        seen=lambda s: f"{_tau_seen(s)}; {_speed_seen(s)}",
    ),
)

doc = "Go down this table; the first row that holds names the cause. A row that cannot be judged is passed over,\n" + (
    "and if none holds the cause is undetermined: say what was not measured.\n\n"
    "| row | holds when | verdict | because |\n|---|---|---|---|\n"
    + "".join(f"| {rule.id} | {rule.condition} | {rule.verdict} | {rule.why} |\n" for rule in RULES)
    + "\nServed acceptance at a position is counted given that the positions before it were accepted, and the trainer\n"
    "judges each position after the right tokens, on samples that it did not train on. Its\n"
    "accuracy and the served acceptance are the two ends of the same wire: both low is training, high and low is\n"
    "integration. A control drafter that does equally badly does not tell the two apart; this comparison does.\n"
)


def diagnose(seen: Seen) -> dict[str, Json]:
    """The verdict of the first row that holds, its reasons, the whole table as it was judged, and suspects to test.

    suspects: in the order of test where the control experiment clears the fine-tuning; else none.
    """
    judged = [(rule, rule.holds(seen)) for rule in RULES]
    table = [
        {
            "rule": rule.id,
            "condition": rule.condition,
            "verdict": rule.verdict,
            "why": rule.why,
            "holds": holds,
            "seen": rule.seen(seen),
        }
        for rule, holds in judged
    ]
    holding = [rule for rule, holds in judged if holds]
    if not holding:
        missing = [f"{rule.id} could not be judged: {rule.seen(seen)}" for rule, holds in judged if holds is None]
        reasons = ["no row of the table holds", *missing]
        return {"verdict": UNDETERMINED, "reasons": reasons, "table": table, "suspects": []}
    first, *others = holding
    reasons = [f"{first.id}: {first.why}", f"seen: {first.seen(seen)}"]
    reasons += [f"also {rule.id}: {rule.seen(seen)}" for rule in others]
    found = _suspects(seen) if first.verdict == NOT_FINE_TUNING else []
    return {"verdict": first.verdict, "reasons": reasons, "table": table, "suspects": found}


def _suspects(s: Seen) -> list[Json]:
    if s.setting is None or s.finetuned is None:
        return []
    checks = (
        (s.parity_mean is None, "hold the engine's hidden states against a reference forward pass, layer by layer"),
        (s.parted is None, "hold greedy outputs with a drafter against those without"),
        (not s.forced, "hold the counters against a forced accept length"),
        (not s.accuracy, "hold the trainer's accuracy on the captured states against the served acceptance"),
    )
    found = suspects(
        s.setting,
        tau=s.finetuned.tau,
        speedup=s.speedup.median if s.speedup else None,
        cost=s.cost,
        unmeasured=tuple(sentence for missing, sentence in checks if missing),
    )
    return [one.to_dict() for one in found]


def seen(control: Control, evidence: Mapping[str, Mapping[str, Json]], values: Mapping[str, Json], shape: str) -> Seen:
    """What the table looks at, of one engine.

    evidence: of the steps parity, finetune, cost and lossless; values: `expect` and `parity` of the profile.
    """
    cost, lossless = evidence["cost"], evidence["lossless"]
    return Seen(
        expectation=Expectation(**values["expect"][shape]),
        parity_limit=values["parity"]["max_mean_rel"],
        parity_mean=evidence["parity"]["mean_rel"],
        parity_max=evidence["parity"]["max_rel"],
        parted=tuple(one["gap_nats"] for one in lossless["unexplained_at"]),
        outputs=lossless["prompts"],
        baseline=control.acceptance("baseline"),
        finetuned=control.acceptance("finetuned"),
        # Evidence of an older run has none, and then no row tells serving from training.
        accuracy=tuple(evidence["finetune"].get("eval_accuracy", ())),
        cost=cost["R_median"],
        speedup=Spread.from_dict(cost["measured"]["finetuned"]),
        predicted=Spread.from_dict(cost["predicted"]["finetuned"]),
        forced={float(length): tau for length, tau in cost["forced_tau"].items() if tau is not None},
        gain=control.gain(),
        setting=Setting(engine=control.engine, version=control.version, arch=control.arch, model=control.model),
    )


def run(context: Context) -> Mapping[str, Json]:
    """The diagnosis over the evidence of the steps before; touches no file and no engine."""
    evidence = {step: given.evidence for step, given in context.inputs.items()}
    shape = evidence["preflight"]["shape"]["name"]
    return diagnose(seen(Control.from_dict(evidence["control"]), evidence, context.values, shape))
