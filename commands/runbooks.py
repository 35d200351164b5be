"""Tasks of runbooks and their runs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from invoke import Context, task

from aerie.program import end_with, error_text

from .screen import JSON, JSON_LINES, console_on, show

if TYPE_CHECKING:
    from aerie.runbook.events import Listener
    from aerie.runbook.runner import RunResult

__all__ = ["approve", "report", "resume", "runbook", "runs"]

RUN = "a run's id, or latest"


@task(
    auto_shortflags=False,
    iterable=["only", "set_"],
    help={
        "name": "runbook, e.g. eagle3",
        "profile": "its values; the runbook names the default",
        "host": "name in the inventory",
        "plan": "only say what would run, and why; changes nothing (so does invoke --dry)",
        "from_": "first step",
        "until": "last step",
        "only": "this step; may be given several times",
        "set_": "KEY=VALUE over the profile, e.g. finetune.epochs=3; may be given several times",
        "again": "run the selected steps even where their result holds",
        "json": "JSON lines on stdout: one an event, the last one the result (with --plan: one document)",
    },
)
def runbook(
    c: Context,
    name: str,
    profile: str | None = None,
    host: str = "localhost",
    plan: bool = False,
    from_: str | None = None,
    until: str | None = None,
    only: list[str] | None = None,
    set_: list[str] | None = None,
    again: bool = False,
    json: bool = False,
) -> None:
    """Run a runbook, or go on with its unfinished run."""
    from aerie import inventory
    from aerie.runbook import runner
    from aerie.runbook.fit import refuse_what_cannot_run

    inventory.require_local(inventory.host(host))
    what: dict[str, Any] = {"profile": profile, "host": host, "overrides": set_ or (), "only": only or ()}
    what |= {"from_": from_, "until": until, "again": again}
    if plan or c.config.run.dry:
        made = runner.plan(name, **what)
        _show_plan(made, json=json)
        refuse_what_cannot_run(made)
    else:
        with _listening(json=json) as listener:
            result = runner.run(name, **what, listener=listener)
        _show_end(result, json=json)


@task(auto_shortflags=False, help={"run": RUN, "json": JSON_LINES})
def resume(c: Context, run: str, json: bool = False) -> None:
    """Go on with a run, from the first step without a result."""
    from aerie.runbook import runner

    if c.config.run.dry:
        _show_run(run, json=json)
    else:
        with _listening(json=json) as listener:
            result = runner.resume(run, listener=listener)
        _show_end(result, json=json)


@task(auto_shortflags=False, help={"json": JSON})
def runs(c: Context, json: bool = False) -> None:
    """List the runs with their states and next commands."""
    from aerie.report import console
    from aerie.runbook import runner

    found = runner.runs()
    document = {"schema": "aerie.runs/1", "runs": [run.to_dict() for run in found]}
    show(console.runs_view(found), document, json=json)


@task(auto_shortflags=False, help={"run": RUN, "json": JSON})
def report(c: Context, run: str, json: bool = False) -> None:
    """Show what a run found, and write its page."""
    _show_report(run, json=json, write=not c.config.run.dry)


@task(
    auto_shortflags=False,
    positional=["run", "step"],
    help={
        "run": RUN,
        "step": "the step whose gate holds the run",
        "reason": "why it may go on; recorded with your name",
    },
)
def approve(c: Context, run: str, step: str, reason: str = "") -> None:
    """Let a run go on past a gate that stopped it or waits for you."""
    from aerie.runbook import runner

    if c.config.run.dry:
        _show_run(run, json=False)
    else:
        runner.approve(run, step, reason)
        console_on(sys.stdout).print(f"approved; next: ./invoke resume {run}")


def _show_plan(plan: Any, *, json: bool) -> None:
    from aerie.report import console

    show(console.plan_view(plan), {"schema": "aerie.runbook-plan/1", **plan.to_dict()}, json=json)


def _show_run(run: str, *, json: bool) -> None:
    from aerie.report import console
    from aerie.runbook import runner

    record = runner.record(run)
    show(console.runs_view([record.summary]), {"schema": "aerie.run/1", **record.to_dict()}, json=json)


def _show_report(run: str, *, json: bool, write: bool = True) -> None:
    from aerie import paths
    from aerie.report import console, of_run
    from aerie.runbook import runner

    record = runner.record(run)
    folder = paths.state_dir() / "runs" / record.summary.run / "report"
    made = of_run.build(record, folder)
    files = of_run.write(made, folder) if write else ()
    show(console.report_view(made.summary, files), made.summary, json=json)


def _show_end(result: "RunResult", *, json: bool) -> None:
    """The report of a run that came to its end, how it ended, and as the last line what to type next."""
    from aerie.errors import StepFailed
    from aerie.report import console

    if result.state == "done" and not result.is_unchanged and not json:
        _show_report(result.run, json=False)
    show(console.result_view(result), {"kind": "run.result", **result.to_dict()}, json=json)
    if result.error:
        console_on(sys.stderr).print(error_text(StepFailed(**result.error)))
    end_with(result.exit_code)


@contextmanager
def _listening(*, json: bool) -> "Iterator[Listener]":
    from aerie.report import live

    if json:
        yield live.JsonLines(sys.stdout)
    else:
        with live.show(console_on(sys.stderr)) as listener:
            yield listener
