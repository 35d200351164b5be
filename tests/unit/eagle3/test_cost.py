"""R and the predicted speed-up, on the figures of the facts (8.1, 8.4)."""

import pytest

from aerie.eagle3.cost import probe
from aerie.eagle3.measured import Control
from aerie.errors import AerieError
from tests.unit import recorded


@pytest.fixture
def control():
    return recorded.evidence()["control"]


def test_r_is_forced_tau_times_plain_rate_over_forced_rate(control):
    found = probe(Control.from_dict(control))
    assert found["available"] and not found["circular"]
    assert found["R"]["2.0"] == pytest.approx({"median": 1.689, "min": 1.62, "max": 1.74}, abs=2e-3)
    assert found["R"]["3.0"] == pytest.approx({"median": 1.604, "min": 1.58, "max": 1.77}, abs=2e-3)
    assert found["forced_tau"] == {"2.0": 2.0, "3.0": 3.0}


def test_measured_speedup_compares_within_a_repetition(control):
    found = probe(Control.from_dict(control))["measured"]
    # 116.7/99.0, 107.5/83.9, 109.1/92.6: the ratio of medians would be the same only by luck
    assert found["finetuned"] == pytest.approx({"median": 1.1788, "min": 1.1782, "max": 1.2813}, abs=1e-3)
    assert found["baseline"] == pytest.approx({"median": 0.710, "min": 0.691, "max": 0.808}, abs=1e-3)


def test_prediction_is_tau_over_every_r(control):
    found = probe(Control.from_dict(control))["predicted"]
    assert found["finetuned"] == pytest.approx({"median": 1.4185, "min": 1.325, "max": 1.485}, abs=2e-3)


def test_without_a_forced_arm_r_is_the_drafters_own_and_predicts_nothing(control):
    for arm in ("forced-2.0", "forced-3.0"):
        del control["arms"][arm]
    found = probe(Control.from_dict(control))
    assert (found["available"], found["circular"], found["R"]) == (False, True, {})
    assert found["R_median"] == pytest.approx(2.346 / 1.1788, abs=1e-3)  # 1.99 in the facts
    assert found["predicted"] == {"baseline": None, "finetuned": None}
    assert found["reason"].startswith("no forced accept length was measured on vllm 0.32.0")


def test_a_forced_arm_that_verified_nothing_gives_no_r(control):
    for run in control["arms"]["forced-2.0"]["runs"]:
        run["counters"] = {"verify_steps": 0, "proposed": 0, "accepted": 0, "accepted_by_position": []}
    found = probe(Control.from_dict(control))
    assert (found["R"]["2.0"], found["forced_tau"]["2.0"]) == (None, None)
    assert found["R_median"] == pytest.approx(1.604, abs=2e-3)


def test_evidence_of_another_version_names_the_key(control):
    del control["client"]
    with pytest.raises(AerieError, match="no key client"):
        Control.from_dict(control)


def test_answers_of_one_chunk_have_no_rate_and_give_no_speedup(control):
    for arm in control["arms"].values():
        for run in arm["runs"]:
            run |= {"tok_s_user": None, "tpot_ms": None}
    found = probe(Control.from_dict(control))
    assert (found["R_median"], found["measured"]["finetuned"], found["available"]) == (None, None, False)
