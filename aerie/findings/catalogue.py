"""The catalogue of findings: catalogue.toml as values, and findings made from its rows."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from aerie.choice import nearest
from aerie.runbook.yamlfile import Document, Keys

from .model import Finding, Fix, Severity

__all__ = ["Row", "check_id", "make", "rows"]

FILE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One id. remedies: text by fix, with words in braces to fill in; source: where the state was seen.

    refuses: while a finding of this id is a person's to mend, nothing else may be changed on the host.
    role: the layer whose role mends it.
    """

    id: str
    layer: str
    severity: Severity
    fix: Fix
    needs_reboot: bool
    refuses: bool
    role: str
    title: str
    remedies: Mapping[Fix, str]
    source: str


@cache
def rows() -> Mapping[str, Row]:
    """Every row by id, in the catalogue's order."""
    document = tomllib.loads(FILE.read_text())
    return MappingProxyType({row["id"]: _row(row) for row in document["finding"]})


def check_id(path: Keys, id: str, document: Document) -> None:  # noqa: A002
    """Add to the document's problems that the value at `path` names no finding."""
    if id not in rows():
        document.problem(path, repr(id), "a finding of docs/findings.md", nearest(id, rows()))


def make(
    id: str,  # noqa: A002  a finding's id is called so everywhere
    *,
    seen: str,
    expected: str,
    fix: Fix | None = None,
    severity: Severity | None = None,
    needs_reboot: bool | None = None,
    **words: str,
) -> Finding:
    """The finding of this id. fix, severity and needs_reboot: where they are not the catalogue's; words: the remedy's.

    Raises KeyError for an id, a fix or a word that the catalogue does not have: a bug of the judge.
    """
    row = rows()[id]
    chosen = fix or row.fix
    return Finding(
        id=id,
        layer=row.layer,
        severity=severity or row.severity,
        seen=seen,
        expected=expected,
        remedy=row.remedies[chosen].format(**words),
        fix=chosen,
        needs_reboot=chosen is Fix.PROVISION and (row.needs_reboot if needs_reboot is None else needs_reboot),
    )


def _row(row: Mapping[str, str | bool]) -> Row:
    fix = Fix(str(row["fix"]))
    others = {one: str(row[f"remedy_{one}"]) for one in Fix if f"remedy_{one}" in row}
    return Row(
        id=str(row["id"]),
        layer=str(row["id"]).partition(".")[0],
        severity=Severity(str(row["severity"])),
        fix=fix,
        needs_reboot=bool(row.get("needs_reboot", False)),
        refuses=bool(row.get("refuses", False)),
        role=str(row.get("role", str(row["id"]).partition(".")[0])),
        title=str(row["title"]),
        remedies=MappingProxyType({fix: str(row["remedy"]), **others}),
        source=str(row["source"]),
    )
