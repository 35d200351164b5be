"""The summary object: the promised keys, from everything or from little; and the last gate on it."""

import copy
import json

import pytest

from aerie.eagle3 import report
from aerie.eagle3.summary import expectations
from aerie.runbook.step import Decision
from tests.unit import recorded

DRAFTER = {
    "tau", "accept_rate", "accept_by_position", "tok_s_c1", "tok_s_c8", "proposed", "accepted", "verify_steps",
}  # fmt: skip


@pytest.fixture(scope="module")
def evidence():
    return recorded.evidence()


def test_the_promised_keys_are_there(evidence):
    found = recorded.summary(evidence)
    assert {"run", "profile", "wall_s"} <= found.keys()
    assert {"name", "version"} <= found["engine"].keys()
    assert {"tok_s_c1", "tok_s_c8"} <= found["baseline"].keys()
    assert found["drafters"].keys() == {"baseline", "finetuned"}
    assert all(one.keys() >= DRAFTER for one in found["drafters"].values())
    assert {"mean_rel", "max_rel"} <= found["parity"].keys()
    assert {"prompts", "equal", "near_ties", "unexplained"} <= found["lossless"].keys()
    assert {"measured", "predicted", "R"} <= found["speedup"].keys()
    assert {"choice", "reasons", "undecidable"} <= found["decision"].keys()


def test_the_numbers_are_those_of_the_counters(evidence):
    found = recorded.summary(evidence)
    finetuned = found["drafters"]["finetuned"]
    assert (finetuned["verify_steps"], finetuned["proposed"], finetuned["accepted"]) == (1500, 4500, 2019)
    assert finetuned["tau"] == pytest.approx(2.346)
    assert finetuned["accept_rate"] == pytest.approx(2019 / 4500)
    assert finetuned["accept_by_position"] == pytest.approx([0.574, 0.444, 0.328])
    assert found["baseline"]["tok_s_user_c1"] == 92.6
    assert found["baseline"]["tok_s_c8"] == 430.1
    assert found["speedup"]["measured"] == pytest.approx(1.1788, abs=1e-4)
    assert found["missed"] == []


@pytest.mark.parametrize("upto", range(18), ids=lambda n: f"after-{n}-steps")
def test_an_unfinished_run_has_nulls_and_is_json(evidence, upto):
    steps = [span["step"] for span in recorded.summary(evidence)["steps"]]
    some = {step: evidence[step] for step in steps[:upto] if step in evidence}
    found = json.loads(json.dumps(recorded.summary(some)))
    assert (found["decision"] is None) == ("decide" not in some)
    assert (found["drafters"]["finetuned"] is None) == ("control" not in some)
    assert (found["baseline"] is None) == ("serve-base" not in some)


def test_before_the_control_experiment_the_baseline_comes_from_serve_base(evidence):
    found = recorded.summary({"serve-base": evidence["serve-base"]})
    assert found["baseline"]["measured_by"] == "serve-base"
    assert found["baseline"]["tok_s_user_c1"] == 92.3


def by_prompt(evidence, finetuned_accepts):
    """The recorded control experiment as an engine tells it that counts by request: 20 prompts a drafter."""
    control = copy.deepcopy(evidence["control"])
    control["by_prompt"] = {
        arm: {
            f"p{i}": {"verify_steps": 100, "proposed": 300, "accepted": n, "accepted_by_position": [n, 0, 0]}
            for i, n in enumerate(accepts)
        }
        for arm, accepts in (("baseline", [50, 70] * 10), ("finetuned", finetuned_accepts))
    }
    return evidence | {"control": control}


@pytest.mark.parametrize(
    ("accepts", "wanted", "missed"),
    [([52, 72] * 10, 1.0, 0), ([72, 52] * 10, 1.0, 0), ([48, 68] * 10, 1.0, 1), ([52, 72] * 10, 1.6, 1)],
    ids=["every prompt gains a little", "some lose as much", "every prompt loses", "far from what is wanted"],
)
def test_where_requests_are_counted_the_gain_is_judged_by_its_interval(evidence, accepts, wanted, missed):
    found = recorded.summary(by_prompt(evidence, accepts))
    found["expectation"] = {"tau_min": 1.0, "tau_ratio_min": wanted, "tau_margin_min": 9.0}
    assert found["gain"]["available"]
    assert (found["gain"]["prompts"], found["gain"]["level"], found["gain"]["resamples"]) == (20, 0.95, 2000)
    sentences = expectations(found)
    assert len(sentences) == missed
    assert all(sentence.endswith(f"expected to reach {wanted:g}") for sentence in sentences)


def test_where_only_the_server_is_counted_the_interval_is_not_available(evidence):
    assert recorded.summary(evidence)["gain"] == {
        "available": False, "reason": "vllm 0.32.0 tells acceptance for the server, not by request",
    }  # fmt: skip


def step_evidence(evidence, tmp_path):
    (tmp_path / "report" / "out").mkdir(parents=True)
    given = {step: one for step, one in evidence.items() if step != "report"}
    context = recorded.context("report", given, tmp_path / "report" / "out")
    return report.run(context)


def test_the_step_leaves_both_files(evidence, tmp_path):
    found = step_evidence(evidence, tmp_path)
    out = tmp_path / "report" / "out"
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(found))
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_the_gate_lets_the_recorded_run_through(evidence, tmp_path):
    assert report.gate(step_evidence(evidence, tmp_path), recorded.values()).decision is Decision.GO


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda e: e["drafters"]["finetuned"].update(tau=2.2),
            "τ of the fine-tuned drafter 2.200, expected at least 2.3",
        ),
        (
            lambda e: e["drafters"]["baseline"].update(tau=1.9),
            "τ over the baseline drafter's 1.235, expected at least 1.6",
        ),
        (
            lambda e: e["drafters"]["baseline"].update(tau=2.1),
            "τ above the baseline drafter's by 0.246, expected at least 0.4",
        ),
        (lambda e: e["parity"].update(mean_rel=0.02), "parity mean 0.0200, expected below 0.02"),
        (lambda e: e["lossless"].update(unexplained=2), "2 outputs part without a near tie, expected none"),
    ],
    ids=["tau", "ratio", "margin", "parity", "lossless"],
)
def test_the_gate_stops_with_the_number_and_the_limit(evidence, tmp_path, change, reason):
    found = copy.deepcopy(step_evidence(evidence, tmp_path))
    change(found)
    verdict = report.gate(found, recorded.values())
    assert verdict.decision is Decision.STOP
    assert reason in verdict.reasons
