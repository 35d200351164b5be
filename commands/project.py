"""Tasks of aerie itself: its pages, its schemas, its checks."""

import json as jsonlib
import sys
from typing import TYPE_CHECKING

from invoke import Context, task

from aerie.program import end_with

from .screen import console_on

if TYPE_CHECKING:
    from aerie.checks import Check

__all__ = ["docs", "schema", "test"]


@task(auto_shortflags=False, help={"check": "fail where a page is not current; write nothing"})
def docs(c: Context, check: bool = False) -> None:
    """Write the pages that are made from their sources: READMEs of runbooks, docs/*.md."""
    from aerie import readme

    if check or c.config.run.dry:
        readme.check()
    else:
        pages = readme.emit()
        console_on(sys.stdout).print("\n".join(f"written {page.path}" for page in pages) or "every page is current")


@task(auto_shortflags=False, positional=["name"], help={"name": "bench, build-plan, lock, plan, snapshot or verify"})
def schema(c: Context, name: str) -> None:
    """Print the JSON Schema of a document."""
    from aerie import schemas

    sys.stdout.write(jsonlib.dumps(schemas.json_schema(name), indent=2) + "\n")


@task(auto_shortflags=False, help={"only": "one check, or a part: unit, hub, engine, lab, tests (those four), slow"})
def test(c: Context, only: str = "") -> None:
    """Run every check, as CI does: format, lint, types, tests; side by side where the machine can."""
    from aerie import checks

    console = console_on(sys.stdout)
    if c.config.run.dry:
        console.print("\n".join(checks.commands(only)))
    else:
        done = [_shown(check) for check in checks.run(only, announce=console.print)]
        console_on(sys.stderr).print("\n".join(checks.closing(done)))
        end_with(0 if all(check.ok for check in done) else 1)


def _shown(check: "Check") -> "Check":
    sys.stdout.write(check.output)
    sys.stdout.flush()
    return check
