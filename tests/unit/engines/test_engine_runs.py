"""Runs of real engines that are kept: their figures follow from their counts, and hold what the page says."""

from statistics import median

import pytest

from aerie.engine_docs import RUNS, measured
from aerie.paths import repository

FILES = sorted((repository() / RUNS).glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def run(request):
    return measured(request.param)


def sums(runs):
    return {key: sum(one["counters"][key] for one in runs) for key in ("verify_steps", "proposed", "accepted")}


def test_tau_and_cost_follow_from_the_counts(run):
    arms = run.evidence["arms"]
    counts = sums(arms["finetuned"]["runs"])
    assert run.tau == pytest.approx(1 + counts["accepted"] / counts["verify_steps"])
    assert run.rate == pytest.approx(counts["accepted"] / counts["proposed"])
    (forced,) = (name for name in arms if name.startswith("forced-"))
    costs = [
        (1 + one["counters"]["accepted"] / one["counters"]["verify_steps"]) * plain["tok_s_user"] / one["tok_s_user"]
        for one, plain in zip(arms[forced]["runs"], arms["base-fixed"]["runs"], strict=True)
    ]
    assert run.cost == pytest.approx(median(costs))


def test_the_measured_speedup_is_the_predicted_one_within_ten_percent(run):
    assert run.speedup.median == pytest.approx(run.predicted, rel=0.1)


def test_the_forced_length_is_what_was_asked_for(run):
    for length, tau in run.probe["forced_tau"].items():
        assert tau == pytest.approx(float(length), rel=0.02)


def test_speculation_is_lossless_but_for_near_ties(run):
    assert run.lossless["unexplained"] == 0
    assert run.lossless["equal"] + run.lossless["near_ties"] == run.lossless["prompts"] > 0


def test_the_servers_counter_agrees_with_its_answers(run):
    metrics = run.evidence["metrics"]["finetuned"]
    counted = metrics["after"]["verify_steps"] - metrics["before"]["verify_steps"]
    answered = sums(run.evidence["arms"]["finetuned"]["runs"])["verify_steps"]
    prompts = run.evidence["arms"]["finetuned"]["runs"][0]["prompts"]
    # In the counter alone: a warm-up by one of the prompts, at most once for each repetition.
    assert answered <= counted <= 1.02 * answered * (prompts + 1) / prompts


def test_graphs_were_used_and_nothing_was_left(run):
    for graphs in run.evidence["graphs"].values():
        assert graphs["captured"] and graphs["decode_lines_with_graph"]
    stop = run.evidence["stop"]
    assert stop["processes"] > 0 and stop["processes_left"] == 0 and stop["finding"] is None
    for index, before in stop["memory_before"].items():
        assert stop["memory_serving"][index] > before + (8 << 30)
        assert stop["memory_after"][index] <= before + (512 << 20)


def test_it_was_not_the_client_that_was_measured(run):
    assert not run.evidence["client"]["bound"]
