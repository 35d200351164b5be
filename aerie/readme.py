"""Pages made from what they describe, so that they cannot drift from it: READMEs of runbooks and roles, docs/*.md."""

from collections.abc import Iterator
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
    """Write every page; returns the pages that were not current before."""
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
            expected="what their sources say now",
            remedy="Run ./invoke docs and commit the result.",
        )


def _stale() -> tuple[Page, ...]:
    return tuple(
        page for kind in (_runbooks, _roles, _lock, _findings, _engines) for page in kind() if not page.is_current
    )


def _runbooks() -> Iterator[Page]:
    for file in sorted((repository() / "runbooks").glob("*/runbook.yml")):
        loaded = spec.load(file.parent.name)
        yield Page(path=path(loaded), text=readme(loaded))


def _roles() -> Iterator[Page]:
    from . import role_docs

    for role in role_docs.roles():
        yield Page(path=repository() / "roles" / role / "README.md", text=role_docs.text(role))


def _lock() -> Iterator[Page]:
    from .lock_docs import text

    yield Page(path=repository() / "docs" / "lock.md", text=text())


def _engines() -> Iterator[Page]:
    from .engine_docs import text

    yield Page(path=repository() / "docs" / "engines.md", text=text())


def _findings() -> Iterator[Page]:
    from .findings.page import text

    yield Page(path=repository() / "docs" / "findings.md", text=text())
