"""Two engines held against each other: the recorded run, and a second engine that is that one but for some rates."""

import pytest

from aerie.eagle3.outcome import attempts
from aerie.report import html
from tests.unit import recorded

FIRST, SECOND = ({"name": "vllm", "version": version} for version in ("0.32.0", "0.33.0"))
QUESTION = "Would another engine serve this drafter faster?"


def run(told):
    return recorded.evidence(**{"control-second": told})


def questions(found):
    return {one["question"]: one["why"] for one in found["decide"]["undecidable"]}


def test_a_second_engine_that_is_as_fast_is_no_reason_to_change():
    found = run(recorded.second())
    engines = found["engines"]
    assert [one["verdict"] for one in engines["engines"]] == ["healthy", "healthy"]
    assert engines["best"]["arm"] == "finetuned" and engines["is_shown"] is False
    assert engines["reasons"] == [
        "for one user vllm 0.32.0 with the fine-tuned drafter gives 1.18 (1.18–1.28) of the rate of vllm 0.32.0 with "
        "no drafter, vllm 0.33.0 with the fine-tuned drafter 1.18 (1.18–1.28): not told apart by these repetitions",
        "for 8 at once vllm 0.32.0 with the fine-tuned drafter gives 1.42 (1.40–1.66) of the rate of vllm 0.32.0 with "
        "no drafter, vllm 0.33.0 with the fine-tuned drafter 1.42 (1.40–1.66): not told apart by these repetitions",
        "the baseline drafter has τ 1.236 on vllm 0.32.0 and 1.236 on vllm 0.33.0: alike",
        "the fine-tuned drafter has τ 2.346 on vllm 0.32.0 and 2.346 on vllm 0.33.0: alike",
        "without a drafter both engines say the same for 40 of 40 prompts, part at a near tie for 0, and otherwise "
        "for 0",
    ]
    assert found["decide"]["choice"] == "serve"
    assert set(engines["reasons"]) <= set(found["decide"]["reasons"])
    assert "Which of the two engines is the faster?" in questions(found) and QUESTION not in questions(found)


def test_a_faster_second_engine_is_the_decision():
    found = run(recorded.second(finetuned=1.5))
    assert found["decide"]["choice"] == "change-engine"
    assert found["decide"]["reasons"][0] == "the fastest for one user is vllm 0.33.0 with the fine-tuned drafter"
    best = found["engines"]["best"]
    assert (best["engine"], best["is_first"], found["engines"]["is_shown"]) == (SECOND, False, True)
    assert best["gains"]["1"]["median"] == pytest.approx(1.5 * 1.1788, abs=1e-4)
    assert not {QUESTION, "Which of the two engines is the faster?"} & set(questions(found))
    (moved,) = [one for one in attempts(recorded.summary(found)) if "0.33.0" in one.what]
    assert (moved.what, moved.worth) == ("serve with vllm 0.33.0, the fine-tuned drafter", best["gains"]["1"]["median"])


def test_a_second_engine_whose_plain_server_is_faster_needs_no_drafter():
    """Drafters that lose on it do not hide that it is the better engine."""
    found = run(recorded.second(base=2, baseline=0.5, finetuned=0.5))
    best = found["engines"]["best"]
    assert (best["engine"], best["arm"], found["decide"]["choice"]) == (SECOND, "base", "change-engine")


def test_a_slower_second_engine_leaves_the_first_ones_decision():
    found = run(recorded.second(base=0.5, baseline=0.5, finetuned=0.5))
    assert (found["decide"]["choice"], found["engines"]["best"]["engine"]) == ("serve", FIRST)
    assert found["engines"]["is_shown"] is True and QUESTION not in questions(found)
    assert not [one for one in attempts(recorded.summary(found)) if "engine" in one.what]


def test_the_engine_that_loses_acceptance_is_named():
    """The story: 15.0 % and 15.6 % on one engine, and nothing to tell whose fault it was."""
    told = recorded.second()
    for run_ in told["arms"]["finetuned"]["runs"]:
        counts = run_["counters"]
        counts["accepted_by_position"] = [count // 3 for count in counts["accepted_by_position"]]
        counts["accepted"] = sum(counts["accepted_by_position"])
    engines = run(told)["engines"]
    assert engines["acceptance"]["finetuned"]["loser"] == SECOND
    assert engines["acceptance"]["finetuned"]["text"].endswith(
        ": vllm 0.33.0 loses acceptance, which is no fault of the drafter"
    )
    assert engines["acceptance"]["baseline"]["loser"] is None


def test_a_wrong_verify_path_is_no_way_to_serve():
    told = recorded.second(finetuned=3, baseline=0.5)
    told["divergences"] = [
        {"arm": "finetuned", "prompt": f"p{number}", "position": 3, "gap_nats": 4.0} for number in range(9)
    ]
    found = run(told)
    ways = {(way["is_first"], way["arm"]): way["why_not"] for way in found["engines"]["ways"]}
    assert ways[False, "finetuned"] == "9 of 40 outputs part from the plain ones as no rounding explains"
    assert found["engines"]["best"]["engine"] == FIRST and found["decide"]["choice"] == "serve"
    assert [one["verdict"] for one in found["engines"]["engines"]] == ["healthy", "integration"]


def test_engines_that_compute_different_models_are_told():
    told = recorded.second()
    told["divergences"] = [{"arm": "reference", "prompt": "p1", "position": 0, "gap_nats": 2.5}]
    plain = run(told)["engines"]["plain"]
    assert (plain["equal"], plain["near_ties"], plain["unexplained"]) == (39, 0, 1)


def test_one_engine_in_two_ways_is_told_apart():
    told = recorded.second()
    told["engine"]["version"] = "0.32.0"
    assert "vllm 0.32.0 (second) with the fine-tuned drafter" in run(told)["engines"]["reasons"][0]


def test_an_engine_that_cannot_run_is_an_open_question():
    told = {"asked": True, "ran": False, "engine": SECOND, "environment": {}, "why": "0.33.0 does not know it"}
    found = run(told)
    assert found["engines"] == {"asked": True, "ran": False, "engine": SECOND, "why": "0.33.0 does not know it"}
    assert questions(found)[QUESTION].endswith("vllm 0.33.0 was to run and cannot: 0.33.0 does not know it")
    (another,) = [one for one in attempts(recorded.summary(found)) if "another engine" in one.what]
    assert another.why == "vllm 0.33.0 cannot run: 0.33.0 does not know it"


def test_without_a_second_engine_nothing_is_compared():
    found = run({"asked": False})
    assert found["engines"] == {"asked": False, "ran": False}
    assert recorded.summary(found)["engines"] is None
    assert questions(found)[QUESTION] == "only vllm 0.32.0 was run; R and the integration are its own"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (recorded.second(finetuned=1.5), "fastest for one user</td>"),
        (recorded.second(), "fastest for one user, within the spread</td>"),
        ({"asked": True, "ran": False, "engine": SECOND, "environment": {}, "why": "not known"},
         "Second engine vllm 0.33.0: not run. not known"),
    ],
    ids=["shown", "overlaps", "refused"],
)  # fmt: skip
def test_the_page_has_it(told, said):
    found = run(told)
    assert said in html.page(recorded.summary(found), found)
