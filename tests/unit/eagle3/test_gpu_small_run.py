"""The kept run of profile gpu-small on an H200: what is derived follows from what was measured; the page says it."""

import json
from types import SimpleNamespace

import pytest

from aerie.eagle3 import cost, diagnose, export, gpus, lossless, parity
from aerie.eagle3.measured import Control
from aerie.paths import repository
from aerie.runbook import spec
from aerie.runbook.step import Decision

RUN = json.loads((repository() / "benchmarks/runbook-runs/gpu-small.h200.json").read_bytes())
PAGE = (repository() / "docs/gpu-small.md").read_text(encoding="utf-8")
LOADED = spec.load("eagle3", "gpu-small")
VALUES = LOADED.values.model_dump()


def evidence(step):
    return RUN["steps"][step]["evidence"]


def test_every_step_but_the_report_left_its_evidence():
    steps = [step.id for step in LOADED.runbook.steps]
    later = {"control-second", "engines", "report"}  # the first two came after this run
    assert list(RUN["steps"]) == [step for step in steps if step not in later]


@pytest.mark.parametrize("step", [gpus, parity, export], ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_its_gates_open(step):
    name = step.__name__.rsplit(".", 1)[1]
    assert step.gate(evidence(name), VALUES).decision is Decision.GO


def test_cost_and_speed_follow_from_the_counts():
    control = Control.from_dict(evidence("control"))
    assert cost.probe(control) == evidence("cost")
    acceptance = control.acceptance("finetuned")
    assert (acceptance.accepted, acceptance.proposed, acceptance.verify_steps) == (652, 5028, 1676)
    assert round(acceptance.tau, 3) == 1.389 and round(control.acceptance("baseline").tau, 3) == 1.087


def test_its_one_gap_is_within_what_the_profile_allows_since_then():
    control = Control.from_dict(evidence("control"))
    assert lossless.classify(control, evidence("lossless")["near_tie_nats"])["unexplained"] == 1
    found = lossless.classify(control, VALUES["lossless"]["near_tie_nats"])
    assert (found["equal"], found["near_ties"], found["unexplained"]) == (72, 8, 0)


def test_diagnosed_anew_it_is_the_price_of_a_verify_step_and_not_the_integration():
    found = lossless.classify(Control.from_dict(evidence("control")), VALUES["lossless"]["near_tie_nats"])
    inputs = {step: SimpleNamespace(evidence=evidence(step)) for step in RUN["steps"]}
    inputs["lossless"].evidence = found
    diagnosis = diagnose.run(SimpleNamespace(inputs=inputs, values=VALUES))
    assert evidence("diagnose")["verdict"] == "integration" and diagnosis["verdict"] == "engine-cost"


def test_the_page_has_its_figures():
    target, synthesis, states, probe = map(evidence, ("target", "synthesize", "parity", "cost"))
    figures = [
        f"{target['parameters']:,} parameters",
        f"{target['tok_s']:,.0f} tokens/s",
        f"{synthesis['tok_s']:,.0f} tokens/s; kept at {synthesis['bytes_per_byte']:.3f} of bf16",
        f"mean error {states['mean_rel']:.4f}; bf16 alone makes {states['reference_bf16_mean_rel']:.4f}",
        f"{evidence('finetune')['tokens']:,} tokens",
        f"R {probe['R_median']:.2f} by a forced length; S {probe['measured']['finetuned']['median']:.2f}",
    ]
    figures += [f"| {RUN['steps'][step]['seconds']:.0f} s |" for step in ("target", "serve-base", "control")]
    assert [figure for figure in figures if figure not in PAGE] == []
