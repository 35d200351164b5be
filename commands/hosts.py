"""Tasks of hosts: what they are, what they must become, and whether they are."""

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context, task

from aerie.program import end_with

from .screen import HOSTS, INVENTORY, JSON, lines, optional_path, show

if TYPE_CHECKING:
    from aerie.provision import Prepared
    from aerie.verification import HostVerification

__all__ = ["plan", "snapshot", "verify"]


@task(
    auto_shortflags=False,
    help={
        "host": HOSTS,
        "inventory": INVENTORY,
        "fail_on": "exit with 3 on findings of this severity: fatal (default) or warn",
        "forks": "hosts to probe at the same time",
        "diff": "also the changes of files that the roles write, by a play in check mode: takes longer",
        "json": JSON,
    },
)
def plan(
    c: Context,
    host: str,
    inventory: str | None = None,
    fail_on: str = "fatal",
    forks: int = 16,
    diff: bool = False,
    json: bool = False,
) -> None:
    """Show what differs between hosts and their locks; changes nothing. 3: something does, 1: a host did not answer."""
    from aerie import provision
    from aerie.report import hosts
    from aerie.severity import least

    fails_on = least(fail_on)
    prepared = provision.prepare(host, inventory_file=optional_path(inventory), forks=forks)
    if diff:
        _show_plan_and_files(prepared, inventory or "", forks, json=json)
    else:
        show(hosts.plan_view(prepared.plan, inventory or ""), prepared.plan.to_dict(), json=json)
    end_with(prepared.plan.exit_code(fails_on))


@task(auto_shortflags=False, help={"host": "name in the inventory", "inventory": INVENTORY})
def snapshot(c: Context, host: str, inventory: str | None = None) -> None:
    """Print what a host is, read in one round trip, as one JSON document; changes nothing."""
    from dataclasses import asdict

    from aerie import remote
    from aerie.inventory import host as named

    found = remote.probe(named(host, optional_path(inventory)))
    sys.stdout.write(jsonlib.dumps(asdict(found), sort_keys=True) + "\n")


@task(
    auto_shortflags=False,
    iterable=["layer"],
    help={
        "host": HOSTS,
        "layer": "only this layer; may be given several times",
        "inventory": INVENTORY,
        "lock": "another lock than the host's own",
        "snapshot": "judge this snapshot (a file of ./invoke snapshot); the host is not asked",
        "deep": "hash all weights again, prove GPUs and extensions, on the hosts: minutes instead of seconds",
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
    deep: bool = False,
    junit: str | None = None,
    forks: int = 16,
    fail_on: str = "fatal",
    json: bool = False,
) -> None:
    """Test that hosts are what their locks say; changes nothing. 3: one is not, 1: not all could be asked."""
    from aerie import verify as library
    from aerie.severity import least

    fails_on, path, recorded = least(fail_on), optional_path(inventory), optional_path(snapshot)
    what: dict[str, Any] = {"layers": layer or (), "lock": lock, "path": path, "recorded": recorded, "forks": forks}
    found = library.verify(host, **what, deep=deep, listener=_host_told, meanwhile=_words)
    from aerie.report import verification

    if junit:
        Path(junit).write_bytes(verification.junit(found))
    show(verification.verification_view(found, inventory or ""), found.to_dict(), json=json)
    end_with(found.exit_code(fails_on))


def _words() -> None:
    """Import what results are shown with."""
    from aerie.report import verification  # noqa: F401


def _host_told(host: "HostVerification") -> None:
    from aerie.report import verification

    lines(verification.host_line)(host)


def _show_plan_and_files(prepared: "Prepared", inventory: str, forks: int, *, json: bool) -> None:
    from rich.console import Group

    from aerie import file_changes
    from aerie.report import hosts
    from aerie.report.file_changes import file_changes_view

    files = file_changes.of_plan(prepared, forks=forks)
    view = Group(file_changes_view(files), "", hosts.plan_view(prepared.plan, inventory))
    show(view, {**prepared.plan.to_dict(), "files": files.to_dict()}, json=json)
