"""One object for a whole run, finished or not: what `report --json` prints and what the pages are made from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from aerie.eagle3.decide import served_by
from aerie.eagle3.measured import BASE, DRAFTERS, Control, Run, Spread
from aerie.eagle3.outcome import outcome
from aerie.runbook.step import Json

__all__ = ["SCHEMA", "Evidence", "Span", "expectations", "summarize"]

SCHEMA = "aerie.report/1"
_COMPARED = ("ran", "engine", "why", "engines", "ways", "best", "is_shown", "acceptance", "plain", "reasons")
_TRAINED = (
    "trainer", "samples", "tokens", "epochs", "epochs_done", "steps", "ended", "kept",
    "accuracy", "eval_accuracy", "eval_tau",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a step's evidence lies, relative to the report, and its hash."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One step in the run's time. started_at: UTC, ISO 8601 with Z; None for a step that did not start in this run.

    note: why it ran, or why it did not.
    """

    step: str
    title: str
    state: str
    started_at: str | None = None
    wall_s: float | None = None
    note: str = ""


def summarize(
    *,
    run: str,
    runbook: str,
    profile: str | None,
    values: Mapping[str, Json],
    evidence: Mapping[str, Mapping[str, Json]],
    timeline: Sequence[Span] = (),
    hashes: Mapping[str, Evidence] | None = None,
    started_at: str | None = None,
    wall_s: float | None = None,
    state: str | None = None,
) -> dict[str, Json]:
    """The summary of a run (issue: report), as plain JSON. What was not measured yet is null, never 0.

    values: the profile's, nested. evidence, hashes: by step id. started_at: UTC, ISO 8601. wall_s: of the run,
    waiting included.
    """
    control = Control.from_dict(evidence["control"]) if "control" in evidence else None
    shape = _at(evidence, "preflight", "shape", "name")
    summary: dict[str, Json] = {
        "schema": SCHEMA,
        "run": run,
        "runbook": runbook,
        "profile": profile,
        "state": state,
        "started_at": started_at,
        "wall_s": wall_s,
        "engine": _engine(evidence),
        "host": _pick(evidence.get("preflight"), "cpu", "gpus", "memory_bytes", "machine", "python"),
        "served_by": served_by(evidence["preflight"]) if "preflight" in evidence else None,
        "target": _target(evidence),
        "baseline": _plain(control, evidence.get("serve-base")),
        "drafters": {name: _drafter(control, name) for name in DRAFTERS},
        "gain": _gain(control),
        "throughput": _throughput(control),
        "training": {step: _pick(evidence.get(step), *_TRAINED) for step in ("baseline-drafter", "finetune")},
        "parity": _parity(evidence.get("parity"), values),
        "lossless": _pick(
            evidence.get("lossless"), "prompts", "equal", "near_ties", "unexplained", "near_tie_nats", "arms"
        ),
        "speedup": _speedup(control, evidence.get("cost")),
        "diagnosis": _pick(evidence.get("diagnose"), "verdict", "reasons", "table", "suspects"),
        "engines": _engines(evidence.get("engines")),
        "decision": _pick(evidence.get("decide"), "choice", "reasons", "undecidable"),
        "expectation": _at(values, "expect", shape) if shape else None,
        "packages": {
            name: packages
            for name in ("engine", "train")
            if (packages := _at(evidence, "environments", name, "packages"))
        },
        "client": _at(evidence, "control", "client"),
        "values": dict(values),
        "steps": [asdict(span) for span in timeline],
        "evidence": {step: asdict(one) for step, one in (hashes or {}).items()},
    }
    judged = control and summary["parity"] and summary["lossless"]
    summary["missed"] = expectations(summary) if judged else []
    return {**summary, "outcome": outcome(summary)}


def expectations(summary: Mapping[str, Json]) -> list[str]:
    """What the run was expected to reach and did not, one sentence each; empty when all is reached."""
    expect, drafters = summary["expectation"], summary["drafters"]
    baseline, finetuned = drafters["baseline"], drafters["finetuned"]
    if not (expect and baseline and finetuned):
        return ["the drafters were not measured, so nothing can be expected of them"]
    tau, other = finetuned["tau"], baseline["tau"]
    parity, lossless = summary["parity"], summary["lossless"]
    gain = summary.get("gain") or {"available": False}
    step = (
        [(gain["high"] >= expect["tau_ratio_min"], f"{gain['text']}, expected to reach {expect['tau_ratio_min']:g}")]
        if gain["available"]
        else [
            (
                tau / other >= expect["tau_ratio_min"],
                f"τ over the baseline drafter's {tau / other:.3f}, expected at least {expect['tau_ratio_min']:g}",
            ),
            (
                tau - other >= expect["tau_margin_min"],
                f"τ above the baseline drafter's by {tau - other:.3f}, expected at least {expect['tau_margin_min']:g}",
            ),
        ]
    )
    checks = [
        (tau >= expect["tau_min"], f"τ of the fine-tuned drafter {tau:.3f}, expected at least {expect['tau_min']:g}"),
        *step,
        (
            parity["mean_rel"] < parity["max_mean_rel"],
            f"parity mean {parity['mean_rel']:.4f}, expected below {parity['max_mean_rel']:g}",
        ),
        (not lossless["unexplained"], f"{lossless['unexplained']} outputs part without a near tie, expected none"),
    ]
    return [sentence for holds, sentence in checks if not holds]


def _engine(evidence: Mapping[str, Json]) -> dict[str, Json] | None:
    by = next((step for step in ("control", "serve-base") if step in evidence), None)
    if by is None:
        return None
    served = evidence[by]
    return {
        "name": served["engine"]["name"],
        "version": served["engine"]["version"],
        "flags": _at(served, "arms", BASE, "flags") or _at(served, "engine", "flags"),
        "drafted": {name: _at(served, "arms", name, "flags") for name in DRAFTERS},
        "measured_by": by,
    }


def _engines(evidence: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """The comparison of two engines; None where no second one was asked for, or it is not there yet."""
    return _pick(evidence, *_COMPARED) if evidence and evidence["asked"] else None


def _target(evidence: Mapping[str, Json]) -> dict[str, Json] | None:
    """Before it is made only its shape is known, from preflight."""
    return _pick(
        evidence.get("target") or evidence.get("preflight"),
        "shape", "parameters", "layers", "hidden_size", "vocab_size", "steps", "tokens", "loss_first", "loss_last",
    )  # fmt: skip


def _parity(evidence: Mapping[str, Json] | None, values: Mapping[str, Json]) -> dict[str, Json] | None:
    seen = _pick(evidence, "mean_rel", "max_rel", "samples", "positions", "layers")
    return seen and {**seen, "max_mean_rel": _at(values, "parity", "max_mean_rel")}


def _plain(control: Control | None, served: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """Without speculation: from the control experiment, which ran it between the drafters, else from serve-base."""
    if control:
        return {**_rates(lambda concurrency: control.runs(BASE, concurrency)), "measured_by": "control"}
    if not served:
        return None
    runs = tuple(Run.from_dict(one) for one in served["bench"]["runs"])
    rates = _rates(lambda concurrency: tuple(run for run in runs if run.concurrency == concurrency))
    return {**rates, "measured_by": "serve-base"}


def _drafter(control: Control | None, name: str) -> dict[str, Json] | None:
    acceptance = control.acceptance(name) if control else None
    if control is None or acceptance is None:
        return None
    return {
        "tau": acceptance.tau,
        "accept_rate": acceptance.rate,
        "accept_by_position": list(acceptance.by_position),
        "proposed": acceptance.proposed,
        "accepted": acceptance.accepted,
        "verify_steps": acceptance.verify_steps,
        **_rates(lambda concurrency: control.runs(name, concurrency)),
    }


def _gain(control: Control | None) -> dict[str, Json] | None:
    """What fine-tuning gained, with its interval over prompts; or why there is none."""
    if control is None or control.acceptance("finetuned") is None:
        return None
    found = control.gain()
    if found is None:
        where = f"{control.engine} {control.version}"
        return {"available": False, "reason": f"{where} tells acceptance for the server, not by request"}
    return {"available": True, **found.to_dict()}


def _rates(runs: Callable[[int], Sequence[Run]]) -> dict[str, float | None]:
    """tok_s: all users together, whole wall time. tok_s_user: one user, first chunk left out; S is its ratio."""
    return {
        f"{key}_c{concurrency}": spread["median"] if (spread := _spread(getattr(run, key) for run in at)) else None
        for concurrency in (1, 8)
        for at in [runs(concurrency)]
        for key in ("tok_s", "tok_s_user")
    }


def _throughput(control: Control | None) -> dict[str, Json]:
    if control is None:
        return {}
    return {
        arm: [_at_concurrency(runs) for c in control.concurrencies if (runs := control.runs(arm, c))]
        for arm in (BASE, *DRAFTERS)
        if arm in control.arms
    }


def _at_concurrency(runs: Sequence[Run]) -> dict[str, Json]:
    return {
        "concurrency": runs[0].concurrency,
        "repetitions": len(runs),
        "prompts": runs[0].prompts,
        "tok_s": _spread(run.tok_s for run in runs),
        "tok_s_user": _spread(run.tok_s_user for run in runs),
        "ttft_ms": _spread(run.ttft_ms["median"] for run in runs),
        "tpot_ms": _spread(run.tpot_ms["median"] if run.tpot_ms else None for run in runs),
    }


def _speedup(control: Control | None, cost: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """measured, predicted, R: medians for the fine-tuned drafter at concurrency 1, with their spreads beside them."""
    if cost is None:
        return None
    measured, predicted = cost["measured"], cost["predicted"]
    return {
        "measured": _at(measured, "finetuned", "median"),
        "predicted": _at(predicted, "finetuned", "median"),
        "R": cost["R_median"],
        "R_by_length": cost["R"],
        "circular": cost["circular"],
        "reason": cost["reason"],
        "by_drafter": {name: {"measured": measured[name], "predicted": predicted[name]} for name in DRAFTERS},
        "by_concurrency": {
            str(c): {name: spread for name in DRAFTERS if (spread := _spread(control.speedups(name, c)))}
            for c in control.concurrencies
        }
        if control
        else {},
    }


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    spread = Spread.of(value for value in values if value is not None)
    return spread.to_dict() if spread else None


def _pick(evidence: Mapping[str, Json] | None, *keys: str) -> dict[str, Json] | None:
    """These keys of a step's evidence, null where an older run lacks one; None while the step has no evidence."""
    return None if evidence is None else {key: evidence.get(key) for key in keys}


def _at(data: Json, *path: str) -> Json:
    """The value at a path of keys, None as soon as one is missing."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
