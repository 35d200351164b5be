"""What worked, what failed, what is unknown, and what to try next: the run's evidence as four lists for a person."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aerie.eagle3.between import WORDS
from aerie.eagle3.diagnose import ORDINARY_R
from aerie.engines.acceptance import tau_of
from aerie.runbook.step import Json

__all__ = ["Attempt", "attempts", "outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Something to try. worth: the speed-up S that it gives if it comes out right, by τ / R of this run's own numbers.

    worth is None where this run cannot say it.
    """

    what: str
    why: str
    worth: float | None = None

    def to_dict(self) -> dict[str, Json]:
        """As JSON."""
        return {"try": self.what, "why": self.why, "worth": None if self.worth is None else round(self.worth, 2)}


def outcome(summary: Mapping[str, Json]) -> dict[str, Json]:
    """{worked, failed, unknown: sentences; next: attempts} of a run, finished or not. summary: of `summarize`.

    unknown: first what was not measured, then what the decision calls undecidable.
    """
    judged = list(_judged(summary))
    decision, diagnosis = summary["decision"], summary["diagnosis"]
    unknown = [sentence for holds, sentence in judged if holds is None]
    if diagnosis:
        unknown += [
            f"{row['rule']} of the diagnosis: {row['seen']}" for row in diagnosis["table"] if row["holds"] is None
        ]
    if decision:
        unknown += [f"{one['question']} {one['why']}" for one in decision["undecidable"]]
    return {
        "worked": [sentence for holds, sentence in judged if holds],
        "failed": [sentence for holds, sentence in judged if holds is False],
        "unknown": unknown,
        "next": [one.to_dict() for one in attempts(summary)],
    }


def attempts(summary: Mapping[str, Json]) -> tuple[Attempt, ...]:
    """In order of expected value: first tests that name the cause, for nothing else is worth its number before that,
    in the diagnosis' own order; then what may be done, by the speed-up that it would give; what has no number last.
    """
    diagnosis = summary["diagnosis"]
    if diagnosis is None:
        return ()
    tests = tuple(
        Attempt(what=one["test"], why=f"{one['cause']}: {one['known']}", worth=one["worth"])
        for one in diagnosis.get("suspects") or ()
    )
    actions = sorted(_actions(summary), key=lambda one: -1.0 if one.worth is None else one.worth, reverse=True)
    return (*tests, *actions)


def _judged(summary: Mapping[str, Json]) -> Iterator[tuple[bool | None, str]]:
    """(whether it held, a sentence with its numbers); None where it was not measured."""
    parity, lossless, gain = summary["parity"], summary["lossless"], summary["gain"]
    if parity and parity["max_mean_rel"] is not None:
        limit = parity["max_mean_rel"]
        states = f"hidden states of the engine against the reference: mean {parity['mean_rel']:.4f}, limit {limit:g}"
        yield parity["mean_rel"] < limit, states
    else:
        yield None, "hidden states of the engine against the reference: not measured"
    if lossless:
        yield (
            not lossless["unexplained"],
            f"greedy outputs with a drafter: {lossless['equal']} of {lossless['prompts']} equal, "
            f"{lossless['near_ties']} part at a near tie, {lossless['unexplained']} unexplained",
        )
    else:
        yield None, "greedy outputs with a drafter against those without: not measured"
    yield from ((False, sentence) for sentence in summary["missed"] if sentence.startswith("τ"))
    yield _tau(summary)
    if gain and gain["available"] and (gain["proven"] or gain["high"] < 1):
        yield gain["proven"], f"fine-tuning: {gain['text']}"
    yield _speed(summary)


def _tau(summary: Mapping[str, Json]) -> tuple[bool | None, str]:
    finetuned, baseline = summary["drafters"]["finetuned"], summary["drafters"]["baseline"]
    if not (finetuned and baseline):
        return None, "accept length τ of both drafters: not measured"
    better = finetuned["tau"] > baseline["tau"]
    return better, f"τ {finetuned['tau']:.3f} of the fine-tuned drafter, {baseline['tau']:.3f} of the baseline's"


def _speed(summary: Mapping[str, Json]) -> tuple[bool | None, str]:
    speed = summary["speedup"]
    measured = speed and speed["measured"]
    if measured is None:
        return None, "speed-up S of the fine-tuned drafter: not measured"
    price = "" if speed["R"] is None else f", a verify step costs R {speed['R']:.2f} plain steps"
    return measured > 1, f"S {measured:.2f} for one user{price}"


def _actions(summary: Mapping[str, Json]) -> Iterator[Attempt]:
    speed, finetuned = summary["speedup"] or {}, summary["drafters"]["finetuned"]
    price, measured = speed.get("R"), speed.get("measured")
    tau = finetuned["tau"] if finetuned else None
    engine = f"{summary['engine']['name']} {summary['engine']['version']}" if summary["engine"] else "this engine"
    match summary["diagnosis"]["verdict"]:
        case "healthy" if measured and measured > 1:
            yield Attempt(
                what="serve with the fine-tuned drafter",
                why="it is faster, and its outputs part at near ties only",
                worth=measured,
            )
        case "training":
            wanted = (summary["expectation"] or {}).get("tau_min")
            yield Attempt(
                what="train more: more of the target's own answers, then more epochs",
                why="the drafter serves as well as it was trained" + (f"; expected is τ {wanted:g}" if wanted else ""),
                worth=wanted / price if wanted and price else None,
            )
        case "integration":
            trained = _trained_tau(summary)
            yield Attempt(
                what=f"repair the integration of {engine}, or serve the same drafter with another engine",
                why=f"trained it is worth τ {trained:.3f}" if trained else "the engine loses what the drafter can do",
                worth=trained / price if trained and price else None,
            )
        case "engine-cost":
            yield Attempt(
                what="serve the same drafter with another engine or version",
                why=f"an R of {ORDINARY_R:g} is ordinary; {engine} has {price:.2f}" if price else "R is too high",
                worth=tau / min(price, ORDINARY_R) if tau and price else None,
            )
        case "extraction":
            yield Attempt(
                what="repair the extraction, synthesize and train again",
                why="what was learnt from wrong states says nothing about the drafter",
            )
        case "undetermined" if _first_row(summary) == "outputs-suspicious":
            yield Attempt(
                what="compare more greedy outputs: raise bench.prompts, and run control again",
                why="few parted, and by little: rounding stays as rare and as small, a wrong verify path does not",
                worth=measured,
            )
        case "undetermined":
            yield Attempt(what="measure what the unknown rows of the diagnosis name", why="nothing names a cause yet")
    baseline = (speed.get("by_drafter") or {}).get("baseline") or {}
    published = (baseline.get("measured") or {}).get("median")
    if published and published > max(1.0, measured or 0.0):
        yield Attempt(what="serve the baseline drafter", why="it is the faster of the two", worth=published)
    yield from _other_engine(summary["engines"], engine)


def _other_engine(engines: Mapping[str, Json] | None, engine: str) -> Iterator[Attempt]:
    if engines and engines["ran"]:
        best = engines["best"]
        if best and not best["is_first"]:
            what = f"serve with {best['engine']['name']} {best['engine']['version']}, {WORDS[best['arm']]}"
            level = min(best["gains"], key=int)
            shown = "" if engines["is_shown"] else ", within the spread of the repetitions"
            why = f"the fastest of all that was measured for one user, over {engine} with no drafter{shown}"
            yield Attempt(what=what, why=why, worth=best["gains"][level]["median"])
        return
    if engines:
        why = f"{engines['engine']['name']} {engines['engine']['version']} cannot run: {engines['why']}"
    else:
        why = f"R and the integration are those of {engine}: set `second` of the profile"
    yield Attempt(what="run the same control experiment on another engine", why=why)


def _first_row(summary: Mapping[str, Json]) -> str | None:
    """The row of the diagnosis' table that gave the verdict, if one did."""
    return next((row["rule"] for row in summary["diagnosis"]["table"] if row["holds"]), None)


def _trained_tau(summary: Mapping[str, Json]) -> float | None:
    """τ that the trainer's own accuracy is worth on samples that it did not train on."""
    accuracy = (summary["training"]["finetune"] or {}).get("eval_accuracy")
    return tau_of(accuracy) if accuracy else None
