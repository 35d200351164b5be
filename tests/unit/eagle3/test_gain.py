"""A gain by fine-tuning: small ones are told from noise by the prompts, not by a fixed number."""

import pytest

from aerie.eagle3.gain import gain
from aerie.eagle3.seen import Expectation
from aerie.engines.acceptance import Acceptance

STEPS = 1000  # of each prompt
# A public fine-tune of an official Kimi-K2.6 drafter: the two τ of each of its two comparisons.
PUBLIC = [(2.300, 2.345), (2.285, 2.308)]


def of(tau: float) -> Acceptance:
    """One prompt's counts at k = 3 with this τ."""
    accepted = round((tau - 1) * STEPS)
    first = min(STEPS, -(-accepted // 2))
    second = min(first, accepted - first)
    return Acceptance(
        verify_steps=STEPS,
        proposed=3 * STEPS,
        accepted=accepted,
        accepted_by_position=(first, second, accepted - first - second),
    )


def prompts(tau: float, spread: float, count: int) -> dict[str, Acceptance]:
    """Prompts that differ from each other by `spread` in turn, with this τ in sum."""
    return {f"p{i}": of(tau + spread * (-1) ** i) for i in range(count)}


@pytest.mark.parametrize(("before", "after"), PUBLIC)
def test_a_small_gain_that_every_prompt_shows_is_proven(before, after):
    # The prompts differ by far more than the drafters do, and both find the same ones hard.
    found = gain(prompts(before, 0.25, 40), prompts(after, 0.25, 40))
    assert found.ratio.value == pytest.approx(after / before, abs=1e-9)
    assert 1 < found.ratio.low <= found.ratio.value <= found.ratio.high
    assert found.is_proven


@pytest.mark.parametrize(("before", "after"), PUBLIC)
def test_the_same_gain_is_not_proven_where_some_prompts_win_and_some_lose(before, after):
    # Equal sums as above; here what one prompt gains the next one loses.
    found = gain(prompts(before, 0.25, 40), prompts(after, -0.25, 40))
    assert found.ratio.value == pytest.approx(after / before, abs=1e-9)
    assert found.ratio.low < 1 < found.ratio.high
    assert not found.is_proven


def test_few_prompts_prove_nothing():
    found = gain(prompts(2.300, 0.25, 10), prompts(2.345, 0.25, 10))
    assert found.ratio.low > 1
    assert not found.is_proven
    assert str(found).endswith("of resamples of 10 prompts, fewer than 12)")


def test_a_loss_is_clear_and_no_gain():
    found = gain(prompts(2.345, 0.25, 40), prompts(2.300, 0.25, 40))
    assert found.ratio.high < 1
    assert (found.ratio.is_clear, found.is_proven) == (True, False)


def test_the_same_counts_give_the_same_interval():
    one, two = (gain(prompts(2.3, 0.25, 40), prompts(2.345, -0.25, 40)) for _ in range(2))
    assert one == two


def test_a_long_answer_weighs_as_much_as_it_is_long():
    long = Acceptance(verify_steps=9000, proposed=27000, accepted=9000, accepted_by_position=(9000, 0, 0))
    better = Acceptance(verify_steps=9000, proposed=27000, accepted=18000, accepted_by_position=(9000, 9000, 0))
    found = gain({"short": of(2.0), "long": long}, {"short": of(2.0), "long": better})
    assert found.ratio.value == pytest.approx((1 + 19 / 10) / (1 + 10 / 10))


def test_only_prompts_that_both_answered_count():
    assert gain({"a": of(2.0)}, {"b": of(2.5)}) is None
    assert gain({"a": of(2.0), "b": of(2.0)}, {"a": of(2.5)}).prompts == 1


def test_where_it_is_measured_it_judges_in_the_place_of_fixed_numbers():
    expected = Expectation(tau_min=2.0, tau_ratio_min=1.0, tau_margin_min=0.2)
    before, after = of(2.300), of(2.345)
    assert expected.misses(before, after) == ["τ above the baseline's by 0.045, expected at least 0.2"]
    proven = gain(prompts(2.3, 0.25, 40), prompts(2.345, 0.25, 40))
    open_ = gain(prompts(2.3, 0.25, 40), prompts(2.345, -0.25, 40))
    lost = gain(prompts(2.345, 0.25, 40), prompts(2.3, 0.25, 40))
    assert expected.misses(before, after, proven) == []
    assert expected.misses(before, after, open_) == []  # neither a gain nor a loss: more prompts would tell
    (missed,) = expected.misses(after, before, lost)
    assert missed.startswith("τ over the baseline's 0.981, 0.")
    assert missed.endswith("(95% of resamples of 40 prompts), expected to reach 1")


def test_a_wanted_ratio_is_missed_only_where_the_prompts_prove_it():
    found = gain(prompts(2.0, 0.25, 40), prompts(2.8, -0.25, 40))
    assert found.ratio.value == pytest.approx(1.4)
    assert not found.is_short_of(1.45)
    assert found.is_short_of(1.6)
