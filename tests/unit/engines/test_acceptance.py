import pytest

from aerie.engines.acceptance import Acceptance, NotMeasured
from aerie.errors import AerieError


def counts(steps, proposed, by_position):
    return Acceptance(
        verify_steps=steps, proposed=proposed, accepted=sum(by_position), accepted_by_position=tuple(by_position)
    )


@pytest.mark.parametrize(
    ("steps", "k", "by_position", "tau", "rate"),
    [
        (100, 3, (30, 10, 5), 1.45, 0.15),  # an accept rate of 15 %, from a published bad drafter, at three depths
        (100, 4, (30, 20, 5, 5), 1.60, 0.15),
        (100, 5, (30, 20, 15, 5, 5), 1.75, 0.15),
        (100, 3, (80, 60, 40), 2.8, 0.60),  # SGLang up to 0.5.10 showed 0.70 for this: τ / 4, the bonus counted
        (7, 3, (0, 0, 0), 1.0, 0.0),
        (7, 3, (7, 7, 7), 4.0, 1.0),
    ],
    ids=["k3", "k4", "k5", "sglang-gauge-case", "nothing-accepted", "all-accepted"],
)
def test_tau_and_rate(steps, k, by_position, tau, rate):
    measured = counts(steps, k * steps, by_position)
    assert measured.tau == pytest.approx(tau, abs=1e-12)
    assert measured.rate == pytest.approx(rate, abs=1e-12)
    assert measured.by_position == tuple(count / steps for count in by_position)


def test_requests_weigh_as_much_as_they_are_long():
    short, long = counts(1, 3, (1, 1, 1)), counts(99, 297, (0, 0, 0))
    assert (short + long).tau == pytest.approx(1.03)  # a mean of means would be 2.5


def test_addition_pads_missing_positions():
    assert (counts(10, 10, (4,)) + counts(10, 20, (5, 2))) == counts(20, 30, (9, 2))


def test_between_two_readings():
    before, after = counts(10, 30, (5, 3, 1)), counts(110, 330, (85, 63, 41))
    assert Acceptance.between(before, after) == counts(100, 300, (80, 60, 40))


def test_between_refuses_a_restarted_server():
    with pytest.raises(AerieError, match="counters that only rise"):
        Acceptance.between(counts(10, 30, (5, 3, 1)), counts(2, 6, (1, 0, 0)))


@pytest.mark.parametrize("value", ["tau", "rate", "by_position"])
def test_without_a_verify_step_nothing_is_measured(value):
    with pytest.raises(NotMeasured, match="expected at least 1"):
        getattr(counts(0, 0, ()), value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"accepted": 4}, "accepted from 0 to proposed, 3"),
        ({"accepted_by_position": (1, 0, 0)}, "positions that sum to accepted, 2"),
        ({"accepted_by_position": (0, 1, 1)}, "counts that never rise"),
        ({"verify_steps": 0}, "counts that never rise"),
        ({"verify_steps": -1}, "verify steps of at least 0"),
    ],
)
def test_counts_that_do_not_belong_together_are_refused(fields, message):
    sound = {"verify_steps": 1, "proposed": 3, "accepted": 2, "accepted_by_position": (1, 1, 0)}
    Acceptance(**sound)
    with pytest.raises(AerieError, match=message):
        Acceptance(**sound | fields)
