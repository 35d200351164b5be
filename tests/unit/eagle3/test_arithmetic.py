"""The figures of the team that did it by hand, and of the model as it was published, come out of the arithmetic."""

import pytest

from aerie.eagle3.arithmetic import Captured, hours

# Kimi-K2.5: 61 layers of width 7168; three auxiliary layers and the last one. 828 GB were captured for 10,000 samples.
KIMI = Captured(samples=10_000, tokens_per_sample=1444, layers=4, hidden=7168)


def test_a_token_of_kimi_takes_57344_bytes():
    assert KIMI.bytes_per_token == 57_344


def test_828_gb_are_14_4_million_tokens():
    assert KIMI.tokens == 14_440_000
    assert KIMI.state_bytes / 1e9 == pytest.approx(828, abs=0.1)
    assert KIMI.feature_bytes / KIMI.tokens == 57_344 + 16


def test_what_is_kept_is_below_the_580_gb_that_a_plane_codec_was_expected_to_leave():
    assert KIMI.kept_bytes / 1e9 == pytest.approx(579.8, abs=0.1)


def test_capture_at_the_storys_rate_takes_an_hour_and_a_quarter():
    assert hours(KIMI.tokens, 3165) == pytest.approx(1.27, abs=0.005)


def test_five_epochs_in_2_6_hours_are_7713_tokens_a_second():
    assert hours(5 * KIMI.tokens, 7713) == pytest.approx(2.60, abs=0.005)


def test_a_load_of_25_minutes_and_one_of_22_seconds():
    size = 547e9
    assert hours(size, 0.365e9) * 60 == pytest.approx(25, abs=0.1)
    assert hours(size, 24.9e9) * 3600 == pytest.approx(22, abs=0.1)


def test_samples_that_fit_a_disk():
    half = KIMI.samples_within(KIMI.kept_bytes / 2)
    assert half == 5000
    assert Captured(samples=half, tokens_per_sample=1444, layers=4, hidden=7168).kept_bytes <= KIMI.kept_bytes / 2


def test_a_rate_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="a rate of 0 a second"):
        hours(1, 0)
