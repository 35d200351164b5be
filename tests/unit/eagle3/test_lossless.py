"""Divergences: equal, near tie, unexplained."""

import pytest

from aerie.eagle3.lossless import classify, gate
from aerie.eagle3.measured import Control
from aerie.runbook.step import Decision
from tests.unit import recorded


def judged(gaps, near_tie_nats=0.1):
    """The evidence when the fine-tuned drafter parts with these gaps, one prompt each."""
    control = recorded.evidence()["control"]
    control["divergences"] = [
        {
            "arm": "finetuned",
            "prompt": f"held-{i}",
            "position": 10 + i,
            "gap_nats": gap,
            "base_token": 1,
            "arm_token": 2,
        }
        for i, gap in enumerate(gaps)
    ]
    return classify(Control.from_dict(control), near_tie_nats)


@pytest.mark.parametrize(
    ("gaps", "counts"),
    [
        ([], (40, 0, 0)),
        ([0.0, 0.03125, 0.0625, 0.03125, 0.0], (35, 5, 0)),  # facts 8.1
        ([0.0062, 0.0206, 0.0048, 0.0129, 0.0135, 0.0266, 0.0242, 0.0233], (32, 8, 0)),  # facts 3.5
        ([0.1], (39, 1, 0)),
        ([0.1001], (39, 0, 1)),
        ([None], (39, 0, 1)),
        ([3.0] * 40, (0, 0, 40)),  # another model's answers
    ],
    ids=["equal", "round-2", "round-1", "at-the-limit", "above-it", "not-scored", "nothing-equal"],
)
def test_counts(gaps, counts):
    found = judged(gaps)
    arm = found["arms"]["finetuned"]
    assert (arm["equal"], arm["near_ties"], arm["unexplained"]) == counts
    assert sum(counts) == arm["prompts"] == 40
    assert (found["prompts"], found["equal"]) == (80, 40 + counts[0])


def test_one_prompt_counts_once_however_often_it_parts():
    control = recorded.evidence()["control"]
    control["divergences"] = [control["divergences"][0]] * 3
    assert classify(Control.from_dict(control), 0.1)["near_ties"] == 1


def test_gate_goes_on_at_near_ties():
    assert gate(judged([0.05]), {}).decision is Decision.GO


def test_gate_names_the_first_places_and_counts_the_rest():
    verdict = gate(judged([0.4, None, 0.5, 0.5, 0.5, 0.5]), {})
    assert verdict.decision is Decision.STOP
    assert verdict.reasons[:3] == (
        "6 of 80 outputs part without a near tie",
        "finetuned, prompt held-0: parts at token 10, gap 0.400 nats, allowed 0.1",
        "finetuned, prompt held-1: parts at token 11, gap not scored, allowed 0.1",
    )
    assert verdict.reasons[-1] == "and 1 more: unexplained_at in the evidence"


@pytest.mark.parametrize(
    ("gaps", "decision"),
    [
        ([0.1875], Decision.GO),  # the H200's, bf16 states 1 % off by rounding
        ([0.2] * 4, Decision.GO),  # 5 % of 80 outputs
        ([0.2] * 5, Decision.STOP),
        ([0.999], Decision.GO),
        ([1.0], Decision.STOP),
        ([None], Decision.STOP),
    ],
    ids=["measured", "few", "not-few", "near", "far", "not-scored"],
)
def test_gate_stops_where_no_rounding_explains_what_parts(gaps, decision):
    assert gate(judged(gaps), {}).decision is decision


def test_gate_says_what_is_suspicious_when_it_goes_on():
    assert gate(judged([0.1875]), {}).reasons == (
        "1 of 80 outputs part without a near tie, few and by little: suspicious, for the diagnosis to weigh",
        "finetuned, prompt held-0: parts at token 10, gap 0.188 nats, allowed 0.1",
    )


def test_the_wider_of_two_gaps_of_one_prompt_counts():
    control = recorded.evidence()["control"]
    one = {"arm": "finetuned", "prompt": "p", "position": 3, "base_token": 1, "arm_token": 2}
    control["divergences"] = [{**one, "gap_nats": 0.9}, {**one, "gap_nats": 0.0}]
    found = classify(Control.from_dict(control), 0.1)
    assert (found["unexplained"], len(found["unexplained_at"])) == (1, 1)
