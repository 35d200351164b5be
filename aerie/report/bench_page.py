"""Measurements of servers as one page: a single file that needs no network, of one bench.json or of several."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from aerie.report import plots, sweeps, words

__all__ = ["page"]

SERIES = 6  # colours; a seventh arm has the first one's
FEW_LEVELS = 8  # bars of one plot that still can be told apart


def page(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """The page. documents: bench.json by a name of its own; the names are shown where there are several."""
    arms = _arms(documents)
    rows = [
        {**row, "label": arms[name, row["arm"]]["label"], "series": arms[name, row["arm"]]["series"]}
        for name, document in documents.items()
        for row in document["rows"]
    ]
    comparisons = [
        {**one, "first": arms[name, one["first"]]["label"], "other": arms[name, one["other"]]["label"]}
        for name, document in documents.items()
        for one in document["comparisons"]
    ]
    return (
        _environment()
        .get_template("bench.html")
        .render(
            documents=documents,
            arms=list(arms.values()),
            rows=rows,
            comparisons=comparisons,
            plots=_plots(rows),
            per_gpu=_is_per_gpu(rows),
            warnings=[*_of_sweeps(documents), *_warnings(rows)],
            sweeps=[one["sweep"] for one in documents.values() if one.get("sweep")],
            figures=_figures(rows),
            has_goodput=any(row["good_share"] is not None for row in rows),
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": words.number, "spread": words.spread, "ratio": _ratio, "faster": sweeps.faster}
    made.globals["advice"] = sweeps.advice
    return made


def _arms(documents: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, document in documents.items():
        for arm, told in document["arms"].items():
            label = f"{name}: {arm}" if len(documents) > 1 else arm
            found[name, arm] = {**told, "label": label, "series": f"s{len(found) % SERIES}"}
    return found


def _of_sweeps(documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is doubtful of measurements whose arms were not measured in turn."""
    told = {name: sweeps.doubts(one["sweep"]) for name, one in documents.items() if one.get("sweep")}
    return [f"{name}: {text}" if len(documents) > 1 else text for name, texts in told.items() for text in texts]


def _is_per_gpu(rows: Sequence[Mapping[str, Any]]) -> bool:
    return bool(rows) and all(row["tok_s_gpu"] is not None for row in rows)


def _warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes figures of the table doubtful, worst first."""
    found = []
    for row in rows:
        where = f"{row['label']}, temperature {row['temperature']:g}, concurrency {row['concurrency']}"
        if row["failed"]:
            found.append(f"{where}: {row['failed']} of {row['requests']} requests failed, first {row['first_error']}")
        if row["client"]["bound"]:
            client = row["client"]
            found.append(
                f"{where}: client-bound, {client['cpu_share']:.0%} of a core, event loop late by "
                f"{client['loop_lag_p99_ms']:.1f} ms (p99): a client with a processor of its own would measure better"
            )
        if (row["cached_share"] or 0) > 0.5:
            found.append(
                f"{where}: {row['cached_share']:.0%} of prompt tokens came from the prefix cache, so TTFT is not a "
                "first reading's"
            )
        if row["bursts"]:
            found.append(
                f"{where}: {row['bursts']} of {row['requests']} answers were held back and came in one piece; they "
                "have no time per token, and their whole requests are what was measured"
            )
        if not row["is_counted"] and row["requests"] > row["failed"]:
            found.append(f"{where}: the server does not count the tokens of chunks; each was taken for one token")
    return sorted(found, key=lambda text: "failed" not in text)


def _figures(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The main figures: what, value, where it was measured."""
    found = []
    for key, what, form, best in (
        ("tok_s_user", "Most per user, tok/s", ".1f", max),
        ("tok_s", "Most of all users, tok/s", ".1f", max),
        ("tau", "Accept length τ", ".2f", max),
        ("joules_per_token", "Least energy, J per token", ".3f", min),
    ):
        having = [row for row in rows if row[key] is not None]
        if having:
            row = best(having, key=lambda row: _value(row[key]))
            where = f"{row['label']}, temperature {row['temperature']:g}, concurrency {row['concurrency']}"
            found.append((what, format(_value(row[key]), form), where))
    return found


def _value(value: Any) -> float:
    return float(value["median"] if isinstance(value, Mapping) else value)


def _plots(rows: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    lines = _lines(rows)
    drawn = {}
    if any(line.points for line, _ in lines):
        unit = "tok/s per GPU" if _is_per_gpu(rows) else "tok/s of all users"
        drawn["tradeoff"] = plots.tradeoff(
            "tradeoff", f"{unit} against tok/s per user, by concurrency",
            [line for line, _ in lines], [names for _, names in lines], axis="tok/s per user", unit=unit,
        )  # fmt: skip
    if any(row["good_rate"] is not None for row in rows):
        drawn["goodput"] = _by_concurrency("goodput", "Good requests per second", rows, "good_rate", "req/s", ".3g")
    if any(row["ttft_ms"] for row in rows):
        drawn["ttft"] = _by_concurrency("ttft", "Time to first token, median and p95", rows, "ttft_ms", "ms", ".3g")
    if any(row["tpot_ms"] for row in rows):
        drawn["tpot"] = _by_concurrency("tpot", "Time per token, median and p95", rows, "tpot_ms", "ms", ".3g")
    drafted = [row for row in rows if row["accept_by_position"]]
    if drafted:
        drawn["acceptance"] = _acceptance(drafted)
    return drawn


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[tuple[plots.Line, list[str]]]:
    """A line for each arm and temperature, its points by concurrency."""
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["tok_s_user"] and row["tok_s"]:
            groups.setdefault((row["label"], row["temperature"]), []).append(row)
    is_per_gpu, found = _is_per_gpu(rows), []
    for (label, temperature), group in groups.items():
        ordered = sorted(group, key=lambda row: row["concurrency"])
        points = [
            (row["tok_s_user"]["median"], row["tok_s_gpu"] if is_per_gpu else row["tok_s"]["median"]) for row in ordered
        ]
        series = ordered[0]["series"] + (" warm" if temperature > 0 else "")
        line = plots.Line(label=f"{label}, temperature {temperature:g}", series=series, points=points)
        found.append((line, [str(row["concurrency"]) for row in ordered]))
    return found


def _by_concurrency(name: str, title: str, rows: Sequence[Mapping[str, Any]], key: str, unit: str, form: str) -> Markup:
    """Bars by concurrency, an arm at its lowest temperature each; whiskers of a latency reach from median to p95."""
    lowest = min(row["temperature"] for row in rows)
    shown = [row for row in rows if row["temperature"] == lowest and row[key] is not None]
    levels = sorted({row["concurrency"] for row in shown})
    bars = []
    for label in dict.fromkeys(row["label"] for row in shown):
        mine = {row["concurrency"]: row for row in shown if row["label"] == label}
        values = [mine[level][key] if level in mine else None for level in levels]
        series = next(row["series"] for row in mine.values())
        high = [value["p95"] if isinstance(value, Mapping) else None for value in values]
        bars.append(
            plots.Bar(
                label=label,
                series=series,
                values=[_value(value) if value is not None else None for value in values],
                low=[_value(value) if isinstance(value, Mapping) else None for value in values],
                high=high,
            )
        )
    return plots.bars(name, title, [str(level) for level in levels], bars, unit=unit, form=form, axis="concurrency")


def _acceptance(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """By position, each arm and temperature with the counts of all concurrencies together."""
    sums: dict[tuple[str, float], tuple[str, list[int], int]] = {}
    for row in rows:
        key = row["label"], row["temperature"]
        _, counts, steps = sums.get(key, ("", [], 0))
        new = row["counters"]["accepted_by_position"]
        length = max(len(counts), len(new))
        padded = [side + [0] * (length - len(side)) for side in (counts, list(new))]
        together = [one + other for one, other in zip(*padded, strict=True)]
        sums[key] = row["series"], together, steps + row["counters"]["verify_steps"]
    positions = max(len(counts) for _, counts, _ in sums.values())
    bars = []
    for (label, temperature), (series, counts, steps) in list(sums.items())[:FEW_LEVELS]:
        shares: list[float | None] = [count / steps for count in counts]
        bars.append(
            plots.Bar(
                label=f"{label}, temperature {temperature:g}",
                series=series + (" warm" if temperature > 0 else ""),
                values=shares + [None] * (positions - len(shares)),
            )
        )
    groups = [str(position + 1) for position in range(positions)]
    return plots.bars(
        "acceptance", "Accepted drafts by position, share of verify steps", groups, bars,
        unit="share of verify steps", form=".2f", axis="draft position",
    )  # fmt: skip


def _ratio(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return words.MISSING
    return f"{value['ratio']:.3f} ({value['low']:.3f}–{value['high']:.3f})"
