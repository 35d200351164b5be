"""Plots: the drawing holds its values inside of the frame."""

import re

import pytest

from aerie.report.plots import HEIGHT, WIDTH, Bar, Line, Row, bars, lines, timeline


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-6, 2e-6], [0.5, None], [123456.0, 1.0]], ids=str)
def test_bars_stay_inside(values):
    drawn = bars("b", "t", ["1", "2"], [Bar(label="x", series="base", values=values)], unit="u", form=".3g", axis="a")
    for x, y, width, height in re.findall(
        r'<rect[^>]* x="([\d.-]+)" y="([\d.-]+)" width="([\d.]+)" height="([\d.-]+)"', drawn
    ):
        assert 0 <= float(x) <= float(x) + float(width) <= WIDTH
        assert 0 <= float(y) <= float(y) + float(height) <= HEIGHT
    assert drawn.count("<rect") == sum(value is not None for value in values)


def test_whiskers_span_the_range():
    one = Bar(label="x", series="base", values=[2.0], low=[1.0], high=[3.0])
    assert bars("b", "t", ["1"], [one], unit="", form="g", axis="").count('class="whisker"') == 1


def test_an_empty_curve_is_no_error():
    assert "<polyline" not in lines("l", "t", [Line(label="x", series="base", points=[])], axis="", unit="")


def test_one_point_is_a_curve():
    assert "<polyline" in lines("l", "t", [Line(label="x", series="base", points=[(0, 2.0)])], axis="", unit="")


def test_a_step_too_short_to_see_is_still_drawn():
    short = Row(label="a", series="base", start=0, length=0.001, text="")
    drawn = timeline("t", "t", [short, Row(label="b", series="base", start=1, length=1e6, text="")])
    assert all(float(width) >= 1.5 for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn))


def test_titles_are_escaped():
    assert "<b>" not in timeline("t", "<b>", [])
