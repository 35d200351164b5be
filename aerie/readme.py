"""runbooks/<name>/README.md, made from the runbook and from its steps' `doc`, so that it cannot drift from them."""

import inspect
from dataclasses import dataclass
from pathlib import Path

from .errors import AerieError
from .paths import repository
from .runbook import spec
from .runbook.step import write_atomic

__all__ = ["Page", "check", "emit", "render"]

HEAD = """\
<!-- Made by `./invoke docs` from runbook.yml and from the steps' own `doc`. Edit those. -->
# {title}

    ./invoke runbook {name}                  # profile {profile}
    ./invoke runbook {name} --plan           # what would run, and why
    ./invoke report latest

What follows is what the steps do, in order, as you would do it by hand. Numbers are those of a profile
(`profiles/`); `--set a.b=value` changes one for a run.

| step | what | needs | runs in | at most |
|---|---|---|---|---|
"""


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


def render(loaded: spec.Loaded) -> str:
    """The page of one runbook with its default profile."""
    runbook = loaded.runbook
    parts = [HEAD.format(title=runbook.title, name=runbook.name, profile=loaded.profile)]
    for number, step in enumerate(runbook.steps, 1):
        needs = ", ".join(step.needs) or "–"
        link = f"[{step.id}](#{number}-{step.id})"
        parts.append(f"| {link} | {step.title} | {needs} | {step.environment} | {_minutes(step.timeout_s)} |\n")
    for number, step in enumerate(runbook.steps, 1):
        parts.append(f"\n## {number} {step.id}\n{step.title}.\n\n")
        if step.values:
            named = ", ".join(f"`{value}`" for value in step.values)
            parts.append(f"Values: {named}. Code: `{step.module.replace('.', '/')}.py`.\n\n")
        parts.append(inspect.cleandoc(spec.module(step).doc) + "\n")
    return "".join(parts)


def _stale() -> tuple[Page, ...]:
    folders = sorted(path.parent for path in (repository() / "runbooks").glob("*/runbook.yml"))
    pages = (Page(path=folder / "README.md", text=render(spec.load(folder.name))) for folder in folders)
    return tuple(page for page in pages if not page.is_current)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
