"""patterns.toml as values: what log lines point to, and the names of counters."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Pattern", "counter", "hits", "metric_names", "patterns", "telling"]

FILE = Path(__file__).with_name("patterns.toml")
HANGS = Path(__file__).parents[1] / "capabilities.toml"  # remedy and source of a known hang are told there alone
LAST = 3  # of several ranks each may log the last line


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """points_to: a kind of diagnosis, or empty. only_last: it counts as long as no other line follows it.

    hang: id in the capability table, whose cause, remedy and source it has; or empty.
    """

    id: str
    search: re.Pattern[str]
    points_to: str
    only_last: bool
    remedy: str
    source: str
    hang: str = ""


@cache
def patterns() -> dict[str, Pattern]:
    """All of them by id."""
    hangs = {row["id"]: row for row in tomllib.loads(HANGS.read_text())["hang"]}
    return {row["id"]: _pattern(row, hangs) for row in _document()["pattern"]}


def _pattern(row: dict[str, Any], hangs: dict[str, Any]) -> Pattern:
    told = row | {"search": re.compile(row["search"])}
    if "hang" in row:
        known = hangs[row["hang"]]
        told |= {"remedy": f"{known['id']}: {known['cause']}; {known['remedy']}", "source": known["source"]}
    return Pattern(**told)


def telling(lines: Iterable[str]) -> int:
    """How many of the lines tell of something that moved."""
    noise = [re.compile(row["search"]) for row in _document()["noise"]]
    return sum(bool(line.strip()) and not any(one.search(line) for one in noise) for line in lines)


def metric_names(what: str) -> tuple[str, ...]:
    """The names of a counter, `tokens` or `running`, in every engine."""
    return tuple(row[what] for row in _document()["metric"])


def hits(lines: Iterable[str]) -> tuple[str, ...]:
    """Ids of the patterns that the log's lines have, in the order of the table."""
    kept = [line for line in lines if line.strip()]
    return tuple(
        one.id
        for one in patterns().values()
        if any(one.search.search(line) for line in (kept[-LAST:] if one.only_last else kept))
    )


def counter(metrics: str, names: Iterable[str]) -> float | None:
    """The sum over labels of the first of these names that /metrics has; None where it has none."""
    for name in names:
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)", metrics, re.MULTILINE)
        if values:
            return sum(map(float, values))
    return None


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())
