"""What engines can do, as what rich draws. Values in, renderables out."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aerie.engines.capability import Backend, Survey, table

__all__ = ["survey_document", "survey_view"]

_WORDS = {"eagle3": ("with EAGLE-3", "green"), "plain": ("plain only", "yellow"), "no": ("no", "red")}


def survey_document(surveys: Sequence[Survey], model: str, arch: str) -> dict[str, Any]:
    """The document of --json."""
    return {
        "schema_version": 1,
        "model": model,
        "arch": arch,
        "releases": [survey.to_dict() for survey in surveys],
        "backends": [
            {"engine": one.engine, "versions": one.versions, "kind": one.kind, "name": one.name, "works": one.works,
             "reason": one.reason, "source": one.source}
            for one in _backends(surveys, arch)
        ],
    }  # fmt: skip


def survey_view(surveys: Sequence[Survey], model: str, arch: str) -> RenderableType:
    """A line for each release with its reasons, what its backends are good for, and the one to take."""
    releases = Table("engine", "version", "serves", "why", box=None, pad_edge=False, title_justify="left")
    for survey in surveys:
        wish, (word, style) = survey.plain.wish, _WORDS[survey.word]
        releases.add_row(wish.engine, wish.version, Text(word, style=style), _why(survey))
    backends = Table("engine", "kind", "backend", "works", "why", box=None, pad_edge=False)
    for one in _backends(surveys, arch):
        backends.add_row(one.engine, one.kind, one.name, one.works, one.reason)
    return Group(
        Text(f"{model} on {arch}", style="bold"), releases, "", backends, "", Text("\n".join(_advice(surveys)))
    )


def _why(survey: Survey) -> str:
    verdict = survey.drafted if survey.drafted.can_run else survey.plain if survey.plain.can_run else survey.drafted
    said = [reason for reason, _, _ in (*survey.drafted.reasons, *verdict.warnings)]
    return "; ".join(dict.fromkeys(said))


def _advice(surveys: Sequence[Survey]) -> Iterator[str]:
    for engine, group in groupby(surveys, key=lambda survey: survey.plain.wish.engine):
        able = [survey for survey in group if survey.drafted.can_run]
        best = min(able, key=lambda survey: len(survey.drafted.warnings), default=None)
        yield (
            f"{engine}: take {best.plain.wish.version}"
            + "".join(f"\n  {reason}. {remedy}" for reason, remedy, _ in best.drafted.warnings)
            if best
            else f"{engine}: no version of the table serves it with EAGLE-3"
        )


def _backends(surveys: Sequence[Survey], arch: str) -> list[Backend]:
    shown = {survey.plain.wish.engine for survey in surveys}
    return [one for one in table().backends if one.engine in shown and arch in one.archs]
