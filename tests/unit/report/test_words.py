"""Numbers as people read them."""

import pytest

from aerie.report.words import duration, flat, size, spread


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 m 00 s"),
        (425, "7 m 05 s"), (3599.7, "1 h 00 m"), (4320, "1 h 12 m"), (100 * 3600, "100 h 00 m"),
    ],
)  # fmt: skip
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (35_100_000, "35.1 MB"),
        (999_900_000, "1 GB"),
        (828e9, "828 GB"),
        (1.41e12, "1.41 TB"),
    ],
)
def test_size(count, text):
    assert size(count) == text


def test_spread():
    assert spread({"median": 1.1788, "min": 1.16, "max": 1.2813}) == "1.18 (1.16–1.28)"
    assert spread(None) == "–"


def test_flat_keeps_the_order_and_names_the_path():
    assert list(flat({"b": {"x": 1, "a": {"y": [2]}}, "a": None}).items()) == [("b.x", 1), ("b.a.y", [2]), ("a", None)]
