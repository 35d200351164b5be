"""aerie's tasks: each parses, calls one library function, shows what it gives and ends with its exit code.

Heavy imports (pydantic, rich, the runner) stand inside the tasks that need them: `--list` and completion stay fast.
"""

import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Collection, Context, Exit, task

from aerie.program import ask, end_with, error_text
from lab.tasks import collection as lab

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from aerie.apply import Listener as PlayListener
    from aerie.runbook.events import Listener
    from aerie.runbook.runner import RunResult

RUN = "a run's id, or latest"
INVENTORY = "path of the inventory; default inventory/hosts.yml"
HOSTS = "hosts of the inventory: a name, a group, gpu[01:08], a,b, all:!x, @failed"
LOCK = "name of a lock"
JSON_LINES = "JSON lines on stdout: one an event, the last one the result"
CHANGING = {
    "host": HOSTS,
    "inventory": INVENTORY,
    "yes": "do not ask",
    "no_input": "never ask: without --yes nothing is changed",
    "check": "only show the plan (so does invoke --dry)",
    "allow_busy": "also where processes use the GPUs: they will fail",
    "no_reboot": "leave a needed reboot to a person",
    "forks": "hosts at the same time",
    "serial": "hosts that reboot at the same time",
    "max_fail_percentage": "stop going on with the others when more than this share of the hosts failed",
    "json": JSON_LINES,
}
JSON = "one JSON document on stdout"


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

    inventory.require_local(inventory.host(host))
    what: dict[str, Any] = {"profile": profile, "host": host, "overrides": set_ or (), "only": only or ()}
    what |= {"from_": from_, "until": until, "again": again}
    if plan or c.config.run.dry:
        _show_plan(runner.plan(name, **what), json=json)
    else:
        with _listening(json=json) as listener:
            result = runner.run(name, **what, listener=listener)
        _show_end(result, json=json)


@task(auto_shortflags=False, help={"run": RUN, "json": "JSON lines on stdout: one an event, the last one the result"})
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
    _show(console.runs_view(found), document, json=json)


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
        _console(sys.stdout).print(f"approved; next: ./invoke resume {run}")


@task(auto_shortflags=False, help={"check": "fail where a page is not current; write nothing"})
def docs(c: Context, check: bool = False) -> None:
    """Write the pages that are made from their sources: READMEs of runbooks, docs/*.md."""
    from aerie import readme

    if check or c.config.run.dry:
        readme.check()
    else:
        pages = readme.emit()
        _console(sys.stdout).print("\n".join(f"written {page.path}" for page in pages) or "every page is current")


@task(
    auto_shortflags=False,
    help={
        "host": HOSTS,
        "inventory": INVENTORY,
        "fail_on": "exit with 3 on findings of this severity: fatal (default) or warn",
        "forks": "hosts to probe at the same time",
        "json": JSON,
    },
)
def plan(
    c: Context, host: str, inventory: str | None = None, fail_on: str = "fatal", forks: int = 16, json: bool = False
) -> None:
    """Show what differs between hosts and their locks; changes nothing. 3: something does, 1: a host did not answer."""
    from aerie import provision
    from aerie.plan import severity
    from aerie.report import hosts

    least = severity(fail_on)
    found = provision.plan_hosts(host, Path(inventory) if inventory else None, forks)
    _show(hosts.plan_view(found, inventory or ""), found.to_dict(), json=json)
    end_with(found.exit_code(least))


@task(auto_shortflags=False, positional=["name"], help={"name": "plan, snapshot or lock"})
def schema(c: Context, name: str) -> None:
    """Print the JSON Schema of a document."""
    from aerie import schemas

    sys.stdout.write(jsonlib.dumps(schemas.json_schema(name), indent=2) + "\n")


@task(auto_shortflags=False, help={"host": "name in the inventory", "inventory": INVENTORY})
def snapshot(c: Context, host: str, inventory: str | None = None) -> None:
    """Print what a host is, read in one round trip, as one JSON document; changes nothing."""
    from dataclasses import asdict

    from aerie import remote
    from aerie.inventory import host as named

    found = remote.probe(named(host, Path(inventory) if inventory else None))
    sys.stdout.write(jsonlib.dumps(asdict(found), sort_keys=True) + "\n")


@task(
    auto_shortflags=False,
    iterable=["layer"],
    help={**CHANGING, "lock": "instead of the inventory's", "layer": "only this one; may be given several times"},
)
def provision(
    c: Context,
    host: str,
    inventory: str = "",
    lock: str = "",
    layer: list[str] | None = None,
    yes: bool = False,
    no_input: bool = False,
    check: bool = False,
    allow_busy: bool = False,
    no_reboot: bool = False,
    forks: int = 16,
    serial: int = 1,
    max_fail_percentage: int = 100,
    json: bool = False,
) -> None:
    """Bring hosts to their locks, and verify them."""
    from aerie import provision as library

    prepared = library.prepare(
        host, inventory_file=_path(inventory), lock=lock or None, layers=layer or (), forks=forks
    )
    _agree(prepared.plan, inventory, check=check or c.config.run.dry, yes=yes, no_input=no_input, json=json)
    with _watching(json=json) as listener:
        how = _how(forks, serial, max_fail_percentage, allow_busy=allow_busy, no_reboot=no_reboot)
        outcome = library.apply(prepared, listener=listener, **how)
    _show_outcome(outcome, "provision", inventory, json=json)


@task(
    auto_shortflags=False,
    help={
        **CHANGING,
        "to": "name of the new lock",
        "auto_rollback": "where the hosts do not verify afterwards, go back to the lock before",
    },
)
def upgrade(
    c: Context,
    host: str,
    to: str,
    inventory: str = "",
    auto_rollback: bool = False,
    yes: bool = False,
    no_input: bool = False,
    check: bool = False,
    allow_busy: bool = False,
    no_reboot: bool = False,
    forks: int = 16,
    serial: int = 1,
    max_fail_percentage: int = 0,
    json: bool = False,
) -> None:
    """Move hosts to another lock, keeping what the way back needs."""
    from aerie import provision as library
    from aerie import upgrade as upgrades

    prepared = library.prepare(host, inventory_file=_path(inventory), lock=to, forks=forks)
    _agree(prepared.plan, inventory, check=check or c.config.run.dry, yes=yes, no_input=no_input, json=json)
    with _watching(json=json) as listener:
        how = _how(forks, serial, max_fail_percentage, allow_busy=allow_busy, no_reboot=no_reboot)
        upgraded = upgrades.upgrade(prepared, auto_rollback=auto_rollback, listener=listener, **how)
    _show_upgraded(upgraded, f"upgrade --to {to}", inventory, json=json)


@task(auto_shortflags=False, help=CHANGING)
def rollback(
    c: Context,
    host: str,
    inventory: str = "",
    yes: bool = False,
    no_input: bool = False,
    check: bool = False,
    allow_busy: bool = False,
    no_reboot: bool = False,
    forks: int = 16,
    serial: int = 1,
    max_fail_percentage: int = 0,
    json: bool = False,
) -> None:
    """Return hosts to the lock before, from packages that they kept."""
    from aerie import upgrade as upgrades

    prepared = upgrades.prepare_rollback(host, inventory_file=_path(inventory), forks=forks)
    _agree(prepared.plan, inventory, check=check or c.config.run.dry, yes=yes, no_input=no_input, json=json)
    with _watching(json=json) as listener:
        how = _how(forks, serial, max_fail_percentage, allow_busy=allow_busy, no_reboot=no_reboot)
        returned = upgrades.rollback(prepared, listener=listener, **how)
    _show_upgraded(returned, "rollback", inventory, json=json)


@task(
    name="show",
    auto_shortflags=False,
    positional=["name"],
    help={
        "name": LOCK,
        "host": "put in what the inventory changes for this host",
        "inventory": INVENTORY,
        "json": JSON,
    },
)
def lock_show(c: Context, name: str, host: str = "", inventory: str | None = None, json: bool = False) -> None:
    """Show every value of a lock."""
    from aerie import inventory as hosts
    from aerie import lock
    from aerie.report import locks

    path = Path(inventory) if inventory else None
    variables = hosts.host(host, path).variables if host else {}
    found = lock.with_variables(lock.load(name, hosts.folder(path)), variables)
    _show(locks.lock_view(found, host), found.model_dump(mode="json", by_alias=True), json=json)


@task(
    name="diff",
    auto_shortflags=False,
    positional=["before", "after"],
    help={"before": LOCK, "after": LOCK, "inventory": INVENTORY, "json": JSON},
)
def lock_diff(c: Context, before: str, after: str, inventory: str | None = None, json: bool = False) -> None:
    """Show what differs between two locks."""
    from aerie import inventory as hosts
    from aerie import lock
    from aerie.lock import difference
    from aerie.report import locks

    folder = hosts.folder(Path(inventory) if inventory else None)
    old, new = lock.load(before, folder), lock.load(after, folder)
    _show(locks.diff_view(old, new), difference.to_dict(old, new), json=json)


@task(
    name="capture",
    auto_shortflags=False,
    help={
        "host": "name in the inventory",
        "name": "of the new lock; the host's name unless given",
        "like": "a lock to take from what a host does not tell; the host's own unless given",
        "check": "only print it; write nothing (so does invoke --dry)",
        "inventory": INVENTORY,
    },
)
def lock_capture(
    c: Context, host: str, name: str = "", like: str = "", check: bool = False, inventory: str | None = None
) -> None:
    """Write a lock from what a host is, and print it."""
    from aerie import inventory as hosts
    from aerie.lock import capture

    path = Path(inventory) if inventory else None
    captured = capture.of_host(hosts.host(host, path), hosts.folder(path), name=name, like=like)
    if not (check or c.config.run.dry):
        written = capture.write_new(captured, hosts.folder(path))
        _console(sys.stderr).print(f"written {written}")
    sys.stdout.write(captured.text)


@task(
    auto_shortflags=False,
    iterable=["layer"],
    help={
        "host": HOSTS,
        "layer": "only this layer; may be given several times",
        "inventory": INVENTORY,
        "lock": "another lock than the host's own",
        "snapshot": "judge this snapshot (a file of ./invoke snapshot); the host is not asked",
        "junit": "write a JUnit file there too, one suite per host",
        "forks": "hosts at a time",
        "fail_on": "exit with 3 when a requirement of this severity failed: fatal (default) or warn",
        "json": JSON,
    },
)
def verify(
    c: Context,
    host: str,
    layer: list[str] | None = None,
    inventory: str | None = None,
    lock: str | None = None,
    snapshot: str | None = None,
    junit: str | None = None,
    forks: int = 16,
    fail_on: str = "fatal",
    json: bool = False,
) -> None:
    """Test that hosts are what their locks say; changes nothing. 3: one is not, 1: not all could be asked."""
    from aerie import verify as library
    from aerie.plan import severity
    from aerie.report import verification

    least, path, recorded = severity(fail_on), *(Path(one) if one else None for one in (inventory, snapshot))
    what: dict[str, Any] = {"layers": layer or (), "lock": lock, "path": path, "recorded": recorded, "forks": forks}
    found = library.verify(host, **what, listener=_lines(verification.host_line))
    if junit:
        Path(junit).write_bytes(verification.junit(found))
    _show(verification.verification_view(found, inventory or ""), found.to_dict(), json=json)
    end_with(found.exit_code(least))


@task(auto_shortflags=False, help={"only": "one check, or a part of the tests: unit, engine, lab"})
def test(c: Context, only: str = "") -> None:
    """Run every check, as CI does: format, lint, types, tests."""
    from aerie import checks

    console = _console(sys.stdout)
    if c.config.run.dry:
        console.print("\n".join(checks.commands(only)))
    else:
        done = checks.run(only, announce=console.print)
        _console(sys.stderr).print("\n".join(str(check) for check in done))
        end_with(0 if all(check.ok for check in done) else 1)


def _console(stream: Any) -> "Console":
    from aerie.report.console import open_console

    return open_console(stream, os.environ)


def _lines(words: Callable[[Any], str]) -> Callable[[Any], None]:
    """Tells on stderr, in a line each, of what ends one after the other."""
    console = _console(sys.stderr)
    return lambda one: console.print(words(one))


def _show(view: "RenderableType", document: Mapping[str, Any], *, json: bool) -> None:
    if json:
        sys.stdout.write(jsonlib.dumps(document, sort_keys=True, ensure_ascii=False) + "\n")
    else:
        _console(sys.stdout).print(view)


def _show_plan(plan: Any, *, json: bool) -> None:
    from aerie.report import console

    _show(console.plan_view(plan), {"schema": "aerie.runbook-plan/1", **plan.to_dict()}, json=json)


def _show_run(run: str, *, json: bool) -> None:
    from aerie.report import console
    from aerie.runbook import runner

    record = runner.record(run)
    _show(console.runs_view([record.summary]), {"schema": "aerie.run/1", **record.to_dict()}, json=json)


def _show_report(run: str, *, json: bool, write: bool = True) -> None:
    from aerie import paths
    from aerie.report import console, of_run
    from aerie.runbook import runner

    record = runner.record(run)
    folder = paths.state_dir() / "runs" / record.summary.run / "report"
    made = of_run.build(record, folder)
    files = of_run.write(made, folder) if write else ()
    _show(console.report_view(made.summary, files), made.summary, json=json)


def _show_end(result: "RunResult", *, json: bool) -> None:
    """The report of a run that came to its end, how it ended, and as the last line what to type next."""
    from aerie.errors import StepFailed
    from aerie.report import console

    if result.state == "done" and not result.is_unchanged and not json:
        _show_report(result.run, json=False)
    _show(console.result_view(result), {"kind": "run.result", **result.to_dict()}, json=json)
    if result.error:
        _console(sys.stderr).print(error_text(StepFailed(**result.error)))
    end_with(result.exit_code)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _how(forks: int, serial: int, max_fail_percentage: int, *, allow_busy: bool, no_reboot: bool) -> dict[str, Any]:
    """The options of provision.apply that every changing task has."""
    options = {"forks": forks, "serial": serial, "max_fail_percentage": max_fail_percentage}
    return {**options, "allow_busy": allow_busy, "may_reboot": not no_reboot}


def _agree(plan: Any, inventory: str, *, check: bool, yes: bool, no_input: bool, json: bool) -> None:
    """Show a plan and ask. Ends the program where the answer is no, and where the plan is only to be shown."""
    from aerie.report import hosts

    if check and json:
        _show(hosts.plan_view(plan, inventory), plan.to_dict(), json=True)
    else:
        _console(sys.stderr if json else sys.stdout).print(hosts.plan_view(plan, inventory, with_next=False))
    if check:
        raise Exit(code=plan.exit_code())
    if not yes and plan.changing():
        ask(f"Apply to {', '.join(host.host for host in plan.changing())}?", no_input=no_input)


def _show_outcome(outcome: Any, command: str, inventory: str, *, json: bool) -> None:
    from aerie.report import provision as views

    _show(views.outcome_view(outcome, command, inventory), outcome.to_dict(), json=json)
    end_with(outcome.exit_code)


def _show_upgraded(upgraded: Any, command: str, inventory: str, *, json: bool) -> None:
    from aerie.report import provision as views

    _show(views.upgraded_view(upgraded, command, inventory), upgraded.to_dict(), json=json)
    end_with(upgraded.exit_code)


@contextmanager
def _watching(*, json: bool) -> "Iterator[PlayListener]":
    from aerie.report import provision as views

    if json:
        yield views.json_lines(sys.stdout)
    else:
        with views.show(_console(sys.stderr)) as listener:
            yield listener


@contextmanager
def _listening(*, json: bool) -> "Iterator[Listener]":
    from aerie.report import live

    if json:
        yield live.JsonLines(sys.stdout)
    else:
        with live.show(_console(sys.stderr)) as listener:
            yield listener


lock = Collection("lock", lock_capture, lock_diff, lock_show)
namespace = Collection(
    approve, docs, plan, provision, report, resume, rollback, runbook, runs, schema, snapshot, test, upgrade, verify,
    lab, lock,
)  # fmt: skip
