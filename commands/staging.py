"""The task that brings models onto hosts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from invoke import Context, Exit, task

from aerie.program import ask, end_with

from .screen import HOSTS, INVENTORY, JSON_LINES, console_on, optional_path, show

if TYPE_CHECKING:
    from aerie.weights.fanout import Listener

__all__ = ["stage"]


@task(
    auto_shortflags=False,
    help={
        "host": HOSTS,
        "model": "name of a model of the lock",
        "plan": "only show what would be fetched and what stands in the way (so does invoke --dry)",
        "deep": "hash what is there again, and fetch what differs",
        "from_host": "the host that fetches from the source, and serves the others; the first one unless given",
        "source": "where to look before the lock's source: http://…, user@host:/folder (rsync over ssh), or a folder",
        "sweep_partials": "remove partial files that nobody goes on with, of other tools too",
        "no_warm": "leave the files out of memory",
        "inventory": INVENTORY,
        "yes": "do not ask",
        "no_input": "never ask: without --yes nothing is changed",
        "forks": "hosts to ask at the same time",
        "json": JSON_LINES,
    },
)
def stage(
    c: Context,
    host: str,
    model: str,
    plan: bool = False,
    deep: bool = False,
    from_host: str = "",
    source: str = "",
    sweep_partials: bool = False,
    no_warm: bool = False,
    inventory: str = "",
    yes: bool = False,
    no_input: bool = False,
    forks: int = 16,
    json: bool = False,
) -> None:
    """Bring a model onto hosts, every file verified, into memory where it fits; goes on where it was."""
    from aerie.weights import fanout, staging

    options = staging.Options(deep=deep, warm=not no_warm, sweep_partials=sweep_partials, source=source)
    where: dict[str, Any] = {"inventory_file": optional_path(inventory), "from_host": from_host}
    prepared = staging.prepare(host, model, **where, options=options, forks=forks)
    _agree(prepared.plan, inventory, only_plan=plan or c.config.run.dry, yes=yes, no_input=no_input, json=json)
    with _watching(json=json) as listener:
        outcome = fanout.stage(prepared, forks=forks, listener=listener)
    _show_outcome(outcome, inventory, json=json)


def _agree(plan: Any, inventory: str, *, only_plan: bool, yes: bool, no_input: bool, json: bool) -> None:
    """Show the plan and ask. Ends the program where the answer is no, and where the plan is only to be shown."""
    from aerie.report import staging as views
    from aerie.report.words import size
    from aerie.weights.staging import HostState

    if only_plan:
        show(views.plan_view(plan, inventory), plan.to_dict(), json=json)
        raise Exit(code=plan.exit_code)
    console_on(sys.stderr if json else sys.stdout).print(views.plan_view(plan, inventory, with_next=False))
    new = [host for host in plan.hosts if host.state is HostState.TO_STAGE]
    if new and not yes:  # those that run already were agreed to
        hosts = ", ".join(host.host for host in new)
        ask(f"Stage {plan.model} on {hosts} ({size(plan.size_bytes)} each)?", no_input=no_input)


def _show_outcome(outcome: Any, inventory: str, *, json: bool) -> None:
    from aerie.report import staging as views

    show(views.outcome_view(outcome, f"stage --model {outcome.model}", inventory), outcome.to_dict(), json=json)
    end_with(outcome.exit_code)


@contextmanager
def _watching(*, json: bool) -> "Iterator[Listener]":
    from aerie.report import staging as views

    if json:
        yield views.json_lines(sys.stdout)
    else:
        with views.show(console_on(sys.stderr)) as listener:
            yield listener
