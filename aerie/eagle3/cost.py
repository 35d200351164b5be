"""What one verify step costs, in plain steps: R, and the speed-up S = τ / R that it predicts."""

from collections.abc import Mapping

from aerie.eagle3.measured import BASE_FIXED, DRAFTERS, Control, Spread, forced_length
from aerie.runbook.step import Context, Json

__all__ = ["doc", "probe", "run"]

doc = """\
Compare the engine with itself. A server that pretends to accept a fixed number of drafts per verify step
(vLLM: `"rejection_sample_method":"synthetic","synthetic_acceptance_length":2.0`; SGLang: `SGLANG_SIMULATE_ACC_LEN`)
shows the price of a step apart from the drafter's skill. For each such server and repetition, with the same prompts,
a fixed number of tokens and concurrency 1:

    R = τ_forced × tok/s without speculation / tok/s forced        τ_forced from the server's counters

R is how many plain steps one verify step (draft, verify, overhead) takes. A drafter with accept length τ is then
expected to give S = τ / R; below τ = R speculation slows the engine down. Put S beside the measured speed-up, each
repetition against the plain run next to it. R belongs to k, concurrency, lengths, engine and machine: it does not
travel, and on shared cores it scatters (facts: predictions missed by up to 25 %), so it gates nothing.
"""


def probe(control: Control) -> dict[str, Json]:
    """The cost evidence. Without a forced arm R comes from the fine-tuned drafter itself and predicts nothing."""
    measured = {arm: _dict(Spread.of(control.speedups(arm))) for arm in DRAFTERS}
    forced = {arm.removeprefix("forced-"): _costs(control, arm) for arm in control.forced}
    costs = [cost for values in forced.values() for cost in values]
    if not costs:
        return {
            "available": False,
            "circular": True,
            "reason": f"no forced accept length was measured on {control.engine} {control.version}: R is τ over the "
            "fine-tuned drafter's own speed-up, so S = τ / R only repeats what was measured",
            "R": {},
            "R_median": _median(_own_costs(control)),
            "predicted": dict.fromkeys(DRAFTERS),
            "measured": measured,
            "forced_tau": {},
        }
    return {
        "available": True,
        "circular": False,
        "reason": f"forced accept lengths {', '.join(forced)} on {control.engine} {control.version}",
        "R": {length: _dict(Spread.of(values)) for length, values in forced.items()},
        "R_median": _median(costs),
        "predicted": {arm: _dict(_predicted(control, arm, costs)) for arm in DRAFTERS},
        "measured": measured,
        "forced_tau": {f"{forced_length(arm):.1f}": _tau(control, arm) for arm in control.forced},
    }


def run(context: Context) -> Mapping[str, Json]:
    """The probe over the control step's evidence; touches no file and no engine."""
    return probe(Control.from_dict(context.inputs["control"].evidence))


def _costs(control: Control, arm: str) -> list[float]:
    base = {run.repetition: run.tok_s_user for run in control.runs(BASE_FIXED)}
    return [
        run.acceptance.tau * plain / run.tok_s_user
        for run in control.runs(arm)
        if run.acceptance and run.acceptance.verify_steps and run.tok_s_user and (plain := base.get(run.repetition))
    ]


def _own_costs(control: Control) -> list[float]:
    acceptance = control.acceptance("finetuned")
    return [acceptance.tau / speedup for speedup in control.speedups("finetuned")] if acceptance else []


def _predicted(control: Control, arm: str, costs: list[float]) -> Spread | None:
    acceptance = control.acceptance(arm)
    return Spread.of(acceptance.tau / cost for cost in costs) if acceptance else None


def _tau(control: Control, arm: str) -> float | None:
    acceptance = control.acceptance(arm)
    return acceptance.tau if acceptance else None


def _median(values: list[float]) -> float | None:
    spread = Spread.of(values)
    return spread.median if spread else None


def _dict(spread: Spread | None) -> dict[str, float] | None:
    return spread.to_dict() if spread else None
