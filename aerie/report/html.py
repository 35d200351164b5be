"""One page for a whole run: a single file that needs no network and still reads in ten years."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from aerie.report import plots, words
from aerie.runbook.step import Json

__all__ = ["page"]

ARMS = {"base": "no drafter", "baseline": "baseline drafter", "finetuned": "fine-tuned drafter"}
CURVES = {"target": "target", "baseline-drafter": "baseline drafter", "finetune": "fine-tuned drafter"}


def page(summary: Mapping[str, Json], evidence: Mapping[str, Mapping[str, Json]]) -> str:
    """The report as HTML. summary: of aerie.eagle3.summary; evidence: by step id, for the loss curves."""
    return (
        _environment()
        .get_template("report.html")
        .render(
            s=summary,
            arms=ARMS,
            headline=_headline(summary),
            plots=_plots(summary, evidence),
            losses=_losses(evidence),
            value_rows=words.flat(summary["values"]),
            source=lambda step: _source(summary, step),
            n=lambda value, step, form=".3f": _number(summary, words.number(value, form), step),
            sp=lambda value, step, form=".2f": _number(summary, words.spread(value, form), step),
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
    made.filters |= {"duration": words.duration, "number": words.number, "size": words.size}
    return made


def _headline(summary: Mapping[str, Json]) -> tuple[str, str]:
    """A word for the verdict and the class of its colour."""
    decision = summary["decision"]
    if decision is None:
        return f"undecided: the run is {summary['state'] or 'not finished'}", "open"
    return decision["choice"], "good" if decision["choice"] == "serve" else "bad"


def _number(summary: Mapping[str, Json], text: str, step: str) -> Markup:
    """A number that links to the evidence it came from."""
    file = summary["evidence"].get(step)
    if file is None or text == words.MISSING:
        return Markup('<span class="n">{}</span>').format(text)
    return Markup('<a class="n" href="{}" title="evidence of {}, sha256 {}">{}</a>').format(
        file["path"], step, file["sha256"], text
    )


def _source(summary: Mapping[str, Json], step: str) -> Markup:
    """A step's evidence file with the first digits of its hash; the whole hash on hover and in the step table."""
    file = summary["evidence"].get(step)
    if file is None:
        return Markup('<span class="source">{}</span>').format(step)
    return Markup('<a class="source" href="{}" title="sha256 {}">{} <code>{}</code></a>').format(
        file["path"], file["sha256"], step, file["sha256"][:10]
    )


def _plots(summary: Mapping[str, Json], evidence: Mapping[str, Mapping[str, Json]]) -> dict[str, Markup]:
    drawn = {}
    if any(summary["drafters"].values()):
        drawn["acceptance"] = _acceptance(summary["drafters"])
    if summary["throughput"]:
        drawn["throughput"] = _throughput(summary["throughput"])
    for step, label in CURVES.items():
        if points := evidence.get(step, {}).get("loss"):
            line = plots.Line(label=label, series=_series(step), points=[(x, y) for x, y in points])
            drawn[f"loss-{step}"] = plots.lines(
                f"loss-{step}", f"Training loss, {label}", [line], axis="optimiser steps", unit="loss"
            )
    if rows := _rows(summary["steps"]):
        drawn["timeline"] = plots.timeline("timeline", "When each step ran", rows)
    return drawn


def _acceptance(drafters: Mapping[str, Json]) -> Markup:
    measured = {name: one for name, one in drafters.items() if one}
    positions = max(len(one["accept_by_position"]) for one in measured.values())
    return plots.bars(
        "acceptance",
        "Accepted drafts by position, share of verify steps",
        [str(i + 1) for i in range(positions)],
        [
            plots.Bar(label=ARMS[name], series=name, values=_padded(one["accept_by_position"], positions))
            for name, one in measured.items()
        ],
        unit="share of verify steps",
        form=".2f",
        axis="draft position",
    )


def _throughput(throughput: Mapping[str, Json]) -> Markup:
    at = {arm: {row["concurrency"]: row["tok_s"] for row in rows if row["tok_s"]} for arm, rows in throughput.items()}
    levels = sorted({level for rates in at.values() for level in rates})

    def column(arm: str, key: str) -> list[float | None]:
        return [at[arm][level][key] if level in at[arm] else None for level in levels]

    return plots.bars(
        "throughput",
        "Tokens per second of all users, median with range over repetitions",
        [str(level) for level in levels],
        [
            plots.Bar(
                label=ARMS[arm], series=arm, values=column(arm, "median"),
                low=column(arm, "min"), high=column(arm, "max"),
            )
            for arm in at
        ],
        unit="tok/s, all users",
        form=".0f",
        axis="concurrency",
    )  # fmt: skip


def _rows(steps: Sequence[Mapping[str, Json]]) -> list[plots.Row]:
    ran = [(step, datetime.fromisoformat(step["started_at"])) for step in steps if step["started_at"]]
    if not ran:
        return []
    begin = min(at for _, at in ran)
    return [
        plots.Row(
            label=step["step"],
            series="bad" if step["state"] in ("failed", "lost", "stopped") else "finetuned",
            start=(at - begin).total_seconds(),
            length=step["wall_s"] or 0,
            text=words.duration(step["wall_s"]),
        )
        for step, at in ran
    ]


def _losses(evidence: Mapping[str, Mapping[str, Json]]) -> list[dict[str, Json]]:
    return [
        {"step": step, "label": label, "first": points[0], "middle": points[len(points) // 2], "last": points[-1]}
        for step, label in CURVES.items()
        if (points := evidence.get(step, {}).get("loss"))
    ]


def _series(step: str) -> str:
    return {"target": "base", "baseline-drafter": "baseline", "finetune": "finetuned"}[step]


def _padded(values: Sequence[float], length: int) -> list[float | None]:
    return [*values, *[None] * (length - len(values))]
