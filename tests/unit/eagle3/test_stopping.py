"""When a training ends, and which checkpoint goes on: by its evaluations alone."""

import pytest

from aerie.eagle3.stopping import Patience, best, ended_early


def evaluations(*taus: float) -> list[tuple[int, list[float]]]:
    """One each 10 steps, of a drafter with one position."""
    return [(10 * number, [tau - 1]) for number, tau in enumerate(taus, start=1)]


@pytest.mark.parametrize(
    ("taus", "patience", "least_gain", "ended"),
    [
        ([1.2, 1.3, 1.4], 1, 0, None),
        ([1.2, 1.1], 1, 0, 20),
        ([1.2, 1.2], 1, 0, 20),
        ([1.2, 1.1, 1.3, 1.2, 1.25], 2, 0, 50),
        ([1.2, 1.1, 1.15], 2, 0, 30),
        ([1.2, 1.1, 1.15, 1.9], 2, 0, 30),
        ([1.2, 1.25, 1.3], 1, 0.1, 20),
        ([1.2, 1.25, 1.31, 1.36], 2, 0.1, None),
        ([1.2, 1.25, 1.25, 1.3], 2, 0.1, 30),
        ([1.2], 1, 0, None),
        ([], 1, 0, None),
    ],
    ids=[
        "each gains",
        "one loses",
        "one gains nothing",
        "two in a row, after a gain",
        "better than the one before, and no gain",
        "over once is over",
        "too little",
        "two make a gain",
        "two do not",
        "one alone",
        "none",
    ],
)
def test_a_training_ends_after_so_many_evaluations_without_a_gain(
    taus: list[float], patience: int, least_gain: float, ended: int | None
) -> None:
    given = Patience(evaluations=patience, least_gain=least_gain)
    assert ended_early(evaluations(*taus), given, 1000) == ended


def test_it_does_not_end_early_at_its_last_step_nor_without_patience() -> None:
    losing = evaluations(1.5, 1.4, 1.3)
    assert ended_early(losing, Patience(evaluations=2), 30) is None
    assert ended_early(losing, None, 1000) is None


def test_the_best_one_has_the_highest_tau_over_all_positions() -> None:
    assert best([(10, [0.5, 0.5]), (20, [0.6, 0.2]), (30, [0.5, 0.5]), (40, [0.4, 0.6])]) == 10
    assert best([]) is None
    # A gain too small to go on for is still the better drafter.
    assert best(evaluations(1.2, 1.201)) == 20


def test_what_differs_in_the_last_bit_is_ranked_as_the_trainer_does() -> None:
    assert best([(10, [0.1]), (20, [0.1 + 2**-56])]) == 20
