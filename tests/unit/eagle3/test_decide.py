"""The decision for each diagnosis, its numbers, and what stays open."""

import pytest

from aerie.eagle3.cost import probe
from aerie.eagle3.decide import decide
from aerie.eagle3.measured import Control
from tests.unit import recorded


def decided(verdict, *, cost=None, control=None):
    control = Control.from_dict(control or recorded.evidence()["control"])
    found = {**probe(control), **(cost or {})}
    return decide(
        control, found, {"verdict": verdict, "reasons": ["rule: why", "seen: numbers"]}, "Intel Xeon, 2 cores"
    )


def exactly(value):
    return {"baseline": None, "finetuned": {"median": value, "min": value, "max": value}}


@pytest.mark.parametrize(
    ("verdict", "cost", "choice"),
    [
        ("healthy", {}, "serve"),
        ("healthy", {"measured": exactly(1.0)}, "do-not-speculate"),
        ("training", {"R_median": 2.2}, "train-more"),
        ("training", {"R_median": None}, "train-more"),
        ("training", {"R_median": 4.0}, "do-not-speculate"),  # k = 3: no drafter yields more than 4 tokens a step
        ("integration", {}, "change-engine"),
        ("engine-cost", {}, "do-not-speculate"),
        ("extraction", {}, "do-not-speculate"),
        ("undetermined", {}, "do-not-speculate"),
        ("not-the-fine-tuning", {}, "do-not-speculate"),
    ],
)
def test_choice(verdict, cost, choice):
    assert decided(verdict, cost=cost)["choice"] == choice


def test_reasons_carry_the_numbers():
    reasons = decided("healthy")["reasons"]
    assert "S 1.18 at concurrency 1 (1.18–1.28 over 3 repetitions)" in reasons
    assert "S 1.42 at concurrency 8 (1.40–1.66)" in reasons
    assert "τ 2.346 against R 1.65: the τ where speculation breaks even" in reasons
    assert reasons[-1] == "diagnosis healthy; rule: why"


def test_a_fault_brings_what_was_seen():
    assert decided("extraction")["reasons"][-2:] == ["diagnosis extraction; rule: why", "seen: numbers"]


def test_one_engine_never_decides_for_another():
    for verdict in ("healthy", "integration", "engine-cost"):
        questions = {one["question"]: one["why"] for one in decided(verdict)["undecidable"]}
        assert questions["Would another engine serve this drafter faster?"].startswith("only vllm 0.32.0 was run")
        assert (
            "Intel Xeon, 2 cores"
            in questions["Do the rates, R and the speed-up hold on other hardware or for another model?"]
        )


def test_a_faster_published_drafter_is_named():
    cost = {"measured": {**exactly(1.1), "baseline": {"median": 1.4, "min": 1.3, "max": 1.5}}}
    assert "the baseline drafter is faster than the fine-tuned one: S 1.40" in decided("healthy", cost=cost)["reasons"]


@pytest.mark.parametrize(
    ("change", "question"),
    [
        (lambda c: c["client"].update(bound=True), "Are the rates the engine's own?"),
        (lambda c: c["outputs_same_across_repetitions"].update(finetuned=False), "Is the accept length repeatable?"),
        (lambda c: [c["arms"].pop(arm) for arm in ("forced-2.0", "forced-3.0")], "Does τ/R predict the speed-up?"),
        (
            lambda c: c["arms"]["finetuned"]["runs"][0].update(tok_s_user=80.0),
            "Is speculation faster or slower here at concurrency 1?",
        ),
        (lambda c: c.pop("by_prompt", None), "Would the fine-tuned drafter's gain hold on other prompts?"),
        (lambda c: c.update(distinct_bigrams=0.3), "Is the acceptance that of text?"),
    ],
    ids=["client-bound", "unsteady", "no-forced-arm", "straddles-1", "not-by-request", "answers-in-circles"],
)
def test_what_the_run_cannot_say_is_said(change, question):
    control = recorded.evidence()["control"]
    change(control)
    assert question in [one["question"] for one in decided("healthy", control=control)["undecidable"]]


def test_a_prediction_outside_of_the_spread_is_said():
    asked = {one["question"]: one["why"] for one in decided("healthy")["undecidable"]}
    assert asked["Does τ/R predict the speed-up?"].startswith("not within the spread: predicted 1.33 to 1.49")


@pytest.mark.parametrize(("accepted", "asked"), [((72, 52), True), ((52, 72), False), ((48, 68), False)])
def test_a_gain_that_the_prompts_leave_open_is_said(accepted, asked):
    control = recorded.evidence()["control"]
    control["by_prompt"] = {
        arm: {
            f"p{i}": {"verify_steps": 100, "proposed": 300, "accepted": n, "accepted_by_position": [n, 0, 0]}
            for i, n in enumerate(counts * 10)
        }
        for arm, counts in (("baseline", (50, 70)), ("finetuned", accepted))
    }
    questions = [one["question"] for one in decided("healthy", control=control)["undecidable"]]
    assert ("Is the fine-tuned drafter better than the baseline's?" in questions) == asked
    assert "Would the fine-tuned drafter's gain hold on other prompts?" not in questions
