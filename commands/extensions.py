"""The task that brings CUDA extensions to hosts."""

import sys
from typing import Any

from invoke import Context, Exit, task

from aerie.program import ask, end_with

from .screen import HOSTS, INVENTORY, JSON_LINES, console_on, optional_path, show

__all__ = ["build"]


@task(
    auto_shortflags=False,
    iterable=["package"],
    help={
        "host": HOSTS,
        "package": "only this one of the lock's [extensions]; may be given several times; else all that it requires",
        "plan": "only show what would be done and why, with jobs, memory and time of a build (so does invoke --dry)",
        "rebuild": "build from source even where a wheel fits",
        "inventory": INVENTORY,
        "yes": "do not ask",
        "no_input": "never ask: without --yes nothing is changed",
        "forks": "hosts at the same time",
        "json": JSON_LINES,
    },
)
def build(
    c: Context,
    host: str,
    package: list[str] | None = None,
    plan: bool = False,
    rebuild: bool = False,
    inventory: str = "",
    yes: bool = False,
    no_input: bool = False,
    forks: int = 16,
    json: bool = False,
) -> None:
    """Bring CUDA extensions into environments of hosts: a wheel with code for their GPUs, else built once."""
    from aerie.extensions import applying, plans
    from aerie.report import extensions as views

    where = optional_path(inventory)
    made = plans.prepare(host, package or (), inventory_file=where, rebuild=rebuild, forks=forks)
    _agree(made, inventory, only_plan=plan or c.config.run.dry, yes=yes, no_input=no_input, json=json)
    listener = views.json_lines(sys.stdout) if json else views.lines(console_on(sys.stderr).print)
    outcome = applying.bring(made, forks=forks, listener=listener)
    show(views.outcome_view(outcome, inventory), outcome.to_dict(), json=json)
    end_with(outcome.exit_code)


def _agree(plan: Any, inventory: str, *, only_plan: bool, yes: bool, no_input: bool, json: bool) -> None:
    """Show the plan and ask. Ends the program where the answer is no, and where the plan is only to be shown."""
    from aerie.report import extensions as views

    if only_plan:
        show(views.plan_view(plan, inventory), plan.to_dict(), json=json)
        raise Exit(code=plan.exit_code)
    console_on(sys.stderr if json else sys.stdout).print(views.plan_view(plan, inventory, with_next=False))
    new = [row for row in plan.at_work if row.job != "running"]  # those that run already were agreed to
    if new and not yes:
        words = ", ".join(f"{row.state} {row.package.name} on {row.host.name}" for row in new)
        ask(f"Go on: {words}?", no_input=no_input)
