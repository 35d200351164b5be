"""runbooks/<name>/README.md, made from the runbook and from its steps' `doc`, so that it cannot drift from them."""

from dataclasses import dataclass
from pathlib import Path

from .errors import AerieError
from .paths import repository
from .runbook import spec
from .runbook.readme import path, readme
from .runbook.step import write_atomic

__all__ = ["Page", "check", "emit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page as it ought to be."""

    path: Path
    text: str

    @property
    def is_current(self) -> bool:
        """Does the file hold this text?"""
        return self.path.is_file() and self.path.read_text() == self.text


def emit() -> tuple[Page, ...]:
    """Write the README of every runbook; returns the pages that were not current before."""
    stale = _stale()
    for page in stale:
        write_atomic(page.path, page.text.encode())
    return stale


def check() -> None:
    """Raises AerieError naming the pages that are not current; changes nothing."""
    if stale := _stale():
        raise AerieError(
            "generated files",
            seen=", ".join(str(page.path.relative_to(repository())) for page in stale) + " out of date",
            expected="what the runbooks and the steps' docs say now",
            remedy="Run ./invoke docs and commit the result.",
        )


def _stale() -> tuple[Page, ...]:
    folders = sorted(path.parent for path in (repository() / "runbooks").glob("*/runbook.yml"))
    runbooks = (spec.load(folder.name) for folder in folders)
    pages = (Page(path=path(loaded), text=readme(loaded)) for loaded in runbooks)
    return tuple(page for page in pages if not page.is_current)
