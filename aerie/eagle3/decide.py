"""What to do with the drafter, by the diagnosis and the measured speed-up; and what this run cannot decide."""

from collections.abc import Mapping

from aerie.eagle3.between import WORDS
from aerie.eagle3.measured import Control, Spread
from aerie.runbook.step import Context, Json

__all__ = ["LOOPING", "decide", "doc", "run", "served_by", "undecidable"]

# Random prompts brought 74.6 % acceptance where chat had 48.5 %, by answers that repeat themselves (tokenspeed#1305).
# Text has well above 0.9 of its pairs of neighbouring tokens once; the limit is our choice.
LOOPING = 0.5

doc = """\
Take the diagnosis and the measured speed-up S of the fine-tuned drafter at concurrency 1 (median over repetitions):

| diagnosis | and | decision |
|---|---|---|
| healthy | S above 1 | serve |
| training | R below k + 1 | train-more: a better drafter can pay on this engine |
| training | R at or above k + 1 | do-not-speculate: not even a perfect drafter pays here |
| integration | – | change-engine: repair this engine's integration or serve with one that keeps the acceptance |
| engine-cost | – | do-not-speculate on this engine; whether another is cheaper takes a run on it |
| not-the-fine-tuning | – | do-not-speculate: keep the drafter, go through the suspects in their order |
| extraction, undetermined | – | do-not-speculate: repair the states, or measure what is missing, first |

k + 1 is the most tokens that one verify step can yield. Where the profile has `second` and step `engines` shows that a
way to serve on that engine is the fastest for one user, the decision is change-engine, whatever the diagnosis says of
the first one. Write down beside it what one run cannot decide. A run on one engine never says that another is better:
the decision to move takes the same control experiment there.
"""


def decide(
    control: Control,
    cost: Mapping[str, Json],
    diagnosis: Mapping[str, Json],
    served_by: str,
    engines: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    """The decision with its reasons, numbers in them.

    served_by: processor or GPUs, for what does not carry over. engines: evidence of that step, None where it has none.
    """
    between = engines or {"asked": False, "ran": False}
    verdict = diagnosis["verdict"]
    speedup = Spread.from_dict(cost["measured"]["finetuned"])
    first, *rest = diagnosis["reasons"]
    faulty = verdict != "healthy"
    choice, why = _moved(between) or _choice(verdict, control, cost, speedup)
    found = f"diagnosis {verdict}; {first}"
    return {
        "choice": choice,
        "reasons": [
            *(why, *_numbers(control, cost, speedup), *between.get("reasons", ())),
            *(found, *(rest if faulty else ())),
        ],
        "undecidable": undecidable(control, cost, speedup, served_by, between),
    }


def undecidable(
    control: Control,
    cost: Mapping[str, Json],
    speedup: Spread | None,
    served_by: str,
    between: Mapping[str, Json],
) -> list[dict[str, str]]:
    """Questions that an operator will ask and this run cannot answer, each with the reason."""
    asked = [
        *_about_engines(control, between),
        (
            "Do the rates, R and the speed-up hold on other hardware or for another model?",
            f"they were measured on {served_by} with this target, these lengths and concurrencies "
            f"{', '.join(map(str, control.concurrencies))}; another processor, card or host has an R of its own",
        ),
        ("What is the speed-up at a temperature above 0?", "only greedy decoding was run"),
    ]
    if not cost["available"]:
        asked.append(("Does τ/R predict the speed-up?", cost["reason"]))
    asked += _about_acceptance(control)
    predicted = Spread.from_dict(cost["predicted"]["finetuned"])
    if speedup and predicted and (predicted.min > speedup.max or speedup.min > predicted.max):
        asked.append(
            (
                "Does τ/R predict the speed-up?",
                f"not within the spread: predicted {predicted.min:.2f} to {predicted.max:.2f}, "
                f"measured {speedup.min:.2f} to {speedup.max:.2f}",
            )
        )
    if speedup and speedup.min < 1 < speedup.max:
        asked.append(
            (
                "Is speculation faster or slower here at concurrency 1?",
                f"repetitions gave S from {speedup.min:.2f} to {speedup.max:.2f}, on both sides of 1",
            )
        )
    if control.client_bound:
        asked.append(
            (
                "Are the rates the engine's own?",
                f"client-bound: the client used {control.client_cpu_share:.0%} of a core, "
                f"and its event loop woke {control.client_lag_ms:.1f} ms late (p99)",
            )
        )
    unsteady = [arm for arm, same in control.repeats.items() if not same]
    if unsteady:
        asked.append(
            ("Is the accept length repeatable?", f"outputs differed between repetitions: {', '.join(unsteady)}")
        )
    return [{"question": question, "why": why} for question, why in asked]


def _about_engines(control: Control, between: Mapping[str, Json]) -> list[tuple[str, str]]:
    question = "Would another engine serve this drafter faster?"
    if between["ran"]:
        if between["is_shown"]:
            return []
        return [("Which of the two engines is the faster?", "their best ways to serve overlap: more repetitions tell")]
    why = f"only {control.engine} {control.version} was run; R and the integration are its own"
    if between["asked"]:
        why += f". {between['engine']['name']} {between['engine']['version']} was to run and cannot: {between['why']}"
    return [(question, why)]


def _moved(between: Mapping[str, Json]) -> tuple[str, str] | None:
    """The decision where the other engine is shown to be the faster one."""
    if not between["ran"] or not between["is_shown"] or between["best"]["is_first"]:
        return None
    best = between["best"]
    engine = f"{best['engine']['name']} {best['engine']['version']}"
    return "change-engine", f"the fastest for one user is {engine} with {WORDS[best['arm']]}"


def _about_acceptance(control: Control) -> list[tuple[str, str]]:
    asked = []
    gain = control.gain()
    if gain and not gain.is_proven and not gain.is_short_of(1):
        asked.append(("Is the fine-tuned drafter better than the baseline's?", f"{gain}: more prompts would tell"))
    if control.acceptance("finetuned") and gain is None:
        asked.append(
            (
                "Would the fine-tuned drafter's gain hold on other prompts?",
                f"{control.engine} {control.version} tells acceptance for the server, not by request: there is no "
                "interval over prompts",
            )
        )
    if control.distinct_bigrams is not None and control.distinct_bigrams < LOOPING:
        asked.append(
            (
                "Is the acceptance that of text?",
                f"the plain answers turn in circles: {control.distinct_bigrams:.0%} of their pairs of tokens are "
                f"distinct, expected {LOOPING:.0%} or more; loops are drafted right by any drafter",
            )
        )
    return asked


def run(context: Context) -> Mapping[str, Json]:
    """The decision over the evidence of the steps before; touches no file and no engine."""
    evidence = {step: given.evidence for step, given in context.inputs.items()}
    control = Control.from_dict(evidence["control"])
    where = served_by(evidence["preflight"])
    return decide(control, evidence["cost"], evidence["diagnose"], where, evidence["engines"])


def served_by(host: Mapping[str, Json]) -> str:
    """The processor or the GPUs that serve, by preflight's evidence."""
    if host["gpus"] is None:
        return f"{host['cpu']['model']}, {host['cpu']['cores']} cores"
    return f"{host['device']['count']} x {host['gpus']['cards'][0]['name']}"


def _choice(verdict: str, control: Control, cost: Mapping[str, Json], speedup: Spread | None) -> tuple[str, str]:
    acceptance = control.acceptance("finetuned")
    most = len(acceptance.accepted_by_position) + 1 if acceptance else None
    price = cost["R_median"]
    match verdict:
        case "healthy" if speedup and speedup.median > 1:
            return "serve", "the fine-tuned drafter is faster than no speculation; its outputs part only at near ties"
        case "healthy":
            return "do-not-speculate", "nothing is wrong, and nothing is gained"
        case "training" if most and price and price >= most:
            return "do-not-speculate", (
                f"a verify step costs R {price:.2f} plain steps and yields at most {most} tokens: "
                "no drafter pays on this engine"
            )
        case "training":
            needed = f"τ above {price:.2f} pays here" if price else "the τ that pays here was not measured"
            pays = "; it pays already, so serving it meanwhile loses nothing" if speedup and speedup.median > 1 else ""
            return "train-more", f"the drafter is the weak part; {needed}{pays}"
        case "integration":
            return "change-engine", (
                f"{control.engine} {control.version} loses what the drafter can do: repair its integration "
                "or serve with an engine that keeps it; the drafter is worth keeping"
            )
        case "engine-cost":
            return "do-not-speculate", (
                "the drafter is good and this engine's verify step is too dear; keep the drafter for a cheaper one"
            )
        case "not-the-fine-tuning":
            return "do-not-speculate", (
                "both drafters fail alike, so training again would not help: test the integration, the engine's cost "
                "and a drafter of this very model, in this order; the fine-tuned drafter is worth keeping"
            )
        case "extraction":
            return "do-not-speculate", "the states are wrong: repair the extraction, synthesize and train again"
        case _:
            return "do-not-speculate", "what was measured does not name a cause"


def _numbers(control: Control, cost: Mapping[str, Json], speedup: Spread | None) -> list[str]:
    lines = []
    if speedup:
        lines.append(
            f"S {speedup.median:.2f} at concurrency 1 ({speedup.min:.2f}–{speedup.max:.2f} over "
            f"{len(control.speedups('finetuned'))} repetitions)"
        )
    for concurrency in control.concurrencies:
        many = Spread.of(control.speedups("finetuned", concurrency)) if concurrency > 1 else None
        if many:
            lines.append(f"S {many.median:.2f} at concurrency {concurrency} ({many.min:.2f}–{many.max:.2f})")
    acceptance = control.acceptance("finetuned")
    if acceptance:
        price = cost["R_median"]
        lines.append(
            f"τ {acceptance.tau:.3f}"
            + (f" against R {price:.2f}: the τ where speculation breaks even" if price else "")
        )
    published = Spread.from_dict(cost["measured"]["baseline"])
    if published and speedup and published.median > max(1.0, speedup.median):
        lines.append(f"the baseline drafter is faster than the fine-tuned one: S {published.median:.2f}")
    return lines
