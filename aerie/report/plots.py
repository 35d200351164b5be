"""Plots as inline SVG: bars with spread, lines, a timeline. Text in, text out; colours come from the page's classes.

Each has a title and a description for those who cannot see it; the page puts the same numbers in a table beside it.
Series differ by fill or dash as well as by colour.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Bar", "Line", "Row", "bars", "lines", "timeline", "tradeoff"]

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 44


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar per group; None where that group was not measured. series: the class of its colour."""

    label: str
    series: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points by rising x."""

    label: str
    series: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bar of the timeline, in seconds since its beginning. series: the class of its state."""

    label: str
    series: str
    start: float
    length: float
    text: str


def bars(
    name: str, title: str, groups: Sequence[str], series: Sequence[Bar], *, unit: str, form: str, axis: str
) -> Markup:
    """Grouped bars from 0 with a value on each, and a whisker from low to high. name: unique on the page."""
    tops = [v for bar in series for v in (*bar.values, *bar.high) if v is not None]
    top = _nice(max(tops, default=1.0))
    parts = [_grid(top, form, unit)]
    slot = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    wide = min(slot * 0.8 / max(len(series), 1), 46)
    for g, group in enumerate(groups):
        middle = LEFT + slot * (g + 0.5)
        for b, bar in enumerate(series):
            value = bar.values[g]
            if value is None:
                continue
            x, y = middle + (b - len(series) / 2) * wide, _y(value, top)
            parts.append(
                f'<rect class="bar {bar.series}" x="{x + 1:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}"/>'
            )
            low, high = (side[g] if side else None for side in (bar.low, bar.high))
            above = y
            if low is not None and high is not None:
                above, centre = _y(high, top), x + wide / 2
                parts.append(f'<path class="whisker" d="{_whisker(centre, above, _y(low, top))}"/>')
            parts.append(_text(x + wide / 2, above - 4, format(value, form), "value"))
        parts.append(_text(middle, HEIGHT - BOTTOM + 15, group, "tick"))
    said = "; ".join(
        f"{bar.label} "
        + ", ".join(f"{g} {format(v, form)}" for g, v in zip(groups, bar.values, strict=True) if v is not None)
        for bar in series
    )
    parts += [_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axis, "axis")]
    return _svg(name, title, said, parts, HEIGHT)


def lines(name: str, title: str, series: Sequence[Line], *, axis: str, unit: str) -> Markup:
    """Curves over a common x from 0 and y from 0; each labelled at its last point."""
    drawn = [line for line in series if line.points]
    right = max((x for line in drawn for x, _ in line.points), default=1) or 1
    top = _nice(max((y for line in drawn for _, y in line.points), default=1.0))
    parts = [_grid(top, ".3g", unit)]
    span = WIDTH - LEFT - RIGHT
    for line in drawn:
        path = " ".join(f"{LEFT + span * x / right:.1f},{_y(y, top):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="line {line.series}" points="{path}"/>')
        x, y = line.points[-1]
        at = LEFT + span * x / right
        near_edge = at > WIDTH - 60
        parts.append(
            _text(at + (-2 if near_edge else 5), _y(y, top) - 6, f"{y:.2f}", "value", "end" if near_edge else "start")
        )
    parts += [
        *(_text(LEFT + span * part, HEIGHT - BOTTOM + 15, f"{right * part:.0f}", "tick") for part in (0, 0.5, 1)),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axis, "axis"),
    ]
    said = "; ".join(f"{ln.label} from {ln.points[0][1]:.2f} to {ln.points[-1][1]:.2f}" for ln in drawn)
    return _svg(name, title, said, parts, HEIGHT)


def tradeoff(
    name: str, title: str, series: Sequence[Line], labels: Sequence[Sequence[str]], *, axis: str, unit: str
) -> Markup:
    """Points of two quantities, both from 0, joined in their order; labels[i][j] is what point j of series i is of."""
    right = _nice(max((x for line in series for x, _ in line.points), default=1.0))
    top = _nice(max((y for line in series for _, y in line.points), default=1.0))
    parts, said, span = [_grid(top, ".4g", unit)], [], WIDTH - LEFT - RIGHT
    for line, names in zip(series, labels, strict=True):
        at = [(LEFT + span * x / right, _y(y, top)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline class="line {line.series}" points="{path}"/>')
        for (x, y), text in zip(at, names, strict=True):
            parts.append(f'<circle class="dot {line.series}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
            parts.append(_text(x + 7, y + 4, text, "value", "start"))
        what = ", ".join(f"{text}: {x:.4g} and {y:.4g}" for (x, y), text in zip(line.points, names, strict=True))
        said.append(f"{line.label} {what}")
    parts += [
        *(_text(LEFT + span * i / 4, HEIGHT - BOTTOM + 15, f"{right * i / 4:.4g}", "tick") for i in range(5)),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axis, "axis"),
    ]
    return _svg(name, title, "; ".join(said), parts, HEIGHT)


def timeline(name: str, title: str, rows: Sequence[Row]) -> Markup:
    """Steps as horizontal bars over the run's time."""
    label_width, row_height, text_width = 108, 19, 62
    end = max((row.start + row.length for row in rows), default=0) or 1
    span = WIDTH - label_width - text_width
    parts = []
    for i, row in enumerate(rows):
        y = 4 + i * row_height
        x, width = label_width + span * row.start / end, max(span * row.length / end, 1.5)
        parts += [
            f'<line class="grid" x1="{label_width}" x2="{WIDTH}" y1="{y + row_height - 2}" y2="{y + row_height - 2}"/>',
            _text(label_width - 6, y + 12, row.label, "tick", "end"),
            f'<rect class="bar {row.series}" x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{row_height - 7}"/>',
            _text(x + width + 4, y + 12, row.text, "value", "start"),
        ]
    said = "; ".join(f"{row.label} {row.text}" for row in rows)
    return _svg(name, title, said, parts, 8 + row_height * len(rows))


def _svg(name: str, title: str, said: str, parts: Sequence[str], height: float) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(said)}</desc>{"".join(parts)}</svg>'
    )


def _grid(top: float, form: str, unit: str) -> str:
    steps = [top * i / 4 for i in range(5)]
    marks = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(v, top):.1f}" y2="{_y(v, top):.1f}"/>'
        + _text(LEFT - 6, _y(v, top) + 4, format(v, form), "tick", "end")
        for v in steps
    ]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    place = f'transform="translate(8 {middle:g}) rotate(-90)" text-anchor="middle"'
    turned = f'<text class="axis" {place}>{escape(unit)}</text>'
    return "".join(marks) + turned


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _whisker(x: float, high: float, low: float) -> str:
    return f"M{x - 4:.1f} {high:.1f}h8m-4 0V{low:.1f}m-4 0h8"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _nice(largest: float) -> float:
    """The end of an axis: a round number with a little room above the largest value."""
    if largest <= 0:
        return 1.0
    room = largest * 1.08
    unit: float = 10.0 ** math.floor(math.log10(room))
    return next(unit * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if unit * step >= room)
