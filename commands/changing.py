"""Tasks that change hosts: each shows its plan, asks, applies, verifies and shows how it ended."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context, Exit, task

from aerie.program import ask, end_with

from .screen import HOSTS, INVENTORY, JSON_LINES, console_on, optional_path, show

if TYPE_CHECKING:
    from aerie.apply import Listener as PlayListener

__all__ = ["provision", "rollback", "upgrade"]

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


@task(
    auto_shortflags=False,
    iterable=["layer"],
    help={
        **CHANGING,
        "lock": "instead of the inventory's",
        "layer": "only this one; may be given several times",
        "plan": "a file of plan --json: go on only where it still holds",
    },
)
def provision(
    c: Context,
    host: str,
    inventory: str = "",
    lock: str = "",
    layer: list[str] | None = None,
    plan: str = "",
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
    from aerie import saved_plan

    prepared = library.prepare(
        host, inventory_file=optional_path(inventory), lock=lock or None, layers=layer or (), forks=forks
    )
    if plan:
        saved_plan.require_same(prepared.plan, Path(plan))
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

    prepared = library.prepare(host, inventory_file=optional_path(inventory), lock=to, forks=forks)
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

    prepared = upgrades.prepare_rollback(host, inventory_file=optional_path(inventory), forks=forks)
    _agree(prepared.plan, inventory, check=check or c.config.run.dry, yes=yes, no_input=no_input, json=json)
    with _watching(json=json) as listener:
        how = _how(forks, serial, max_fail_percentage, allow_busy=allow_busy, no_reboot=no_reboot)
        returned = upgrades.rollback(prepared, listener=listener, **how)
    _show_upgraded(returned, "rollback", inventory, json=json)


def _how(forks: int, serial: int, max_fail_percentage: int, *, allow_busy: bool, no_reboot: bool) -> dict[str, Any]:
    """The options of provision.apply that every changing task has."""
    options = {"forks": forks, "serial": serial, "max_fail_percentage": max_fail_percentage}
    return {**options, "allow_busy": allow_busy, "may_reboot": not no_reboot}


def _agree(plan: Any, inventory: str, *, check: bool, yes: bool, no_input: bool, json: bool) -> None:
    """Show a plan and ask. Ends the program where the answer is no, and where the plan is only to be shown."""
    from aerie.report import hosts

    if check and json:
        show(hosts.plan_view(plan, inventory), plan.to_dict(), json=True)
    else:
        console_on(sys.stderr if json else sys.stdout).print(hosts.plan_view(plan, inventory, with_next=False))
    if check:
        raise Exit(code=plan.exit_code())
    if not yes and plan.changing():
        ask(f"Apply to {', '.join(host.host for host in plan.changing())}?", no_input=no_input)


def _show_outcome(outcome: Any, command: str, inventory: str, *, json: bool) -> None:
    from aerie.report import provision as views

    show(views.outcome_view(outcome, command, inventory), outcome.to_dict(), json=json)
    end_with(outcome.exit_code)


def _show_upgraded(upgraded: Any, command: str, inventory: str, *, json: bool) -> None:
    from aerie.report import provision as views

    show(views.upgraded_view(upgraded, command, inventory), upgraded.to_dict(), json=json)
    end_with(upgraded.exit_code)


@contextmanager
def _watching(*, json: bool) -> "Iterator[PlayListener]":
    from aerie.report import provision as views

    if json:
        yield views.json_lines(sys.stdout)
    else:
        with views.show(console_on(sys.stderr)) as listener:
            yield listener
