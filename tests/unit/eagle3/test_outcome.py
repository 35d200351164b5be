"""What worked, failed and is unknown, and what to try next: each list from the numbers of the run."""

import copy

import pytest

from aerie.eagle3 import diagnose
from aerie.eagle3.outcome import outcome
from tests.unit import recorded
from tests.unit.eagle3.test_story import VLLM_16, told


@pytest.fixture(scope="module")
def healthy():
    return recorded.summary(recorded.evidence())


def changed(summary, verdict="healthy", **values):
    found = copy.deepcopy(summary)
    found["diagnosis"]["verdict"] = verdict
    found["speedup"].update(values)
    return found


def test_a_healthy_run(healthy):
    found = outcome(healthy)
    assert found["worked"] == [
        "hidden states of the engine against the reference: mean 0.0058, limit 0.02",
        "greedy outputs with a drafter: 70 of 80 equal, 10 part at a near tie, 0 unexplained",
        "τ 2.346 of the fine-tuned drafter, 1.236 of the baseline's",
        "S 1.18 for one user, a verify step costs R 1.65 plain steps",
    ]
    assert found["failed"] == []
    assert found["next"] == [
        {
            "try": "serve with the fine-tuned drafter",
            "why": "it is faster, and its outputs part at near ties only",
            "worth": 1.18,
        },
        {
            "try": "run the same control experiment on another engine",
            "why": "R and the integration are those of vllm 0.32.0: set `second` of the profile",
            "worth": None,
        },
    ]


def test_what_is_unknown_is_what_was_not_measured_and_what_cannot_be_decided(healthy):
    undecidable = [f"{one['question']} {one['why']}" for one in healthy["decision"]["undecidable"]]
    assert outcome(healthy)["unknown"] == undecidable
    early = outcome(recorded.summary({}))
    assert (early["worked"], early["failed"], early["next"]) == ([], [], [])
    assert early["unknown"] == [
        "hidden states of the engine against the reference: not measured",
        "greedy outputs with a drafter against those without: not measured",
        "accept length τ of both drafters: not measured",
        "speed-up S of the fine-tuned drafter: not measured",
    ]


def test_the_story_is_tried_in_the_order_of_its_suspects(healthy):
    story = copy.deepcopy(healthy)
    story["diagnosis"] = diagnose.diagnose(told(VLLM_16))
    story["speedup"]["measured"] = 0.66
    story["parity"] = None
    found = outcome(story)
    assert [(one["why"].partition(":")[0], one["worth"]) for one in found["next"]] == [
        ("integration", 1.27),
        ("engine-cost", None),
        ("drafter-of-another-model", 1.27),
        ("R and the integration are those of vllm 0.32.0", None),
    ]
    assert "S 0.66 for one user, a verify step costs R 1.65 plain steps" in found["failed"]
    assert found["unknown"][0] == "hidden states of the engine against the reference: not measured"
    assert "parity-mean of the diagnosis: parity mean not measured (limit 0.02), max not measured" in found["unknown"]


@pytest.mark.parametrize(
    ("verdict", "price", "worth"),
    [
        ("training", 2.0, 1.15),  # the τ that the profile expects, 2.3
        ("integration", 2.0, 1.47),  # the trainer's accuracy, 0.883, 0.739, 0.622: τ 2.942
        ("engine-cost", 3.0, 1.07),  # τ 2.346 at an ordinary R, 2.2
        ("engine-cost", None, None),
        ("extraction", 2.0, None),
        ("undetermined", 2.0, None),
    ],
)
def test_what_a_repair_is_worth_comes_from_the_runs_own_numbers(healthy, verdict, price, worth):
    first, *_ = outcome(changed(healthy, verdict, R=price))["next"]
    assert first["worth"] == worth


def test_what_gives_more_is_tried_first(healthy):
    faster = {"measured": {"median": 1.3, "min": 1.2, "max": 1.4}, "predicted": None}
    found = changed(healthy, "training", R=2.0, by_drafter={"baseline": faster, "finetuned": faster})
    assert [(one["try"].split(",")[0].split(":")[0], one["worth"]) for one in outcome(found)["next"]] == [
        ("serve the baseline drafter", 1.3),
        ("train more", 1.15),
        ("run the same control experiment on another engine", None),
    ]


def test_a_missed_expectation_is_among_the_failures(healthy):
    found = copy.deepcopy(healthy)
    found["missed"] = ["τ of the fine-tuned drafter 2.200, expected at least 2.3"]
    assert outcome(found)["failed"] == ["τ of the fine-tuned drafter 2.200, expected at least 2.3"]


def test_outputs_that_part_rarely_and_by_little_ask_for_more_of_them():
    control = recorded.evidence()["control"]
    control["divergences"][0]["gap_nats"] = 0.1875
    found = outcome(recorded.summary(recorded.evidence(control=control)))
    assert found["next"][0] == {
        "try": "compare more greedy outputs: raise bench.prompts, and run control again",
        "why": "few parted, and by little: rounding stays as rare and as small, a wrong verify path does not",
        "worth": 1.18,
    }
