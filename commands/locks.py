"""Tasks of the collection `lock`."""

import sys

from invoke import Collection, Context, task

from .screen import INVENTORY, JSON, console_on, optional_path, show

__all__ = ["collection"]

LOCK = "name of a lock"


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

    path = optional_path(inventory)
    variables = hosts.host(host, path).variables if host else {}
    found = lock.with_variables(lock.load(name, hosts.folder(path)), variables)
    show(locks.lock_view(found, host), found.model_dump(mode="json", by_alias=True), json=json)


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

    folder = hosts.folder(optional_path(inventory))
    old, new = lock.load(before, folder), lock.load(after, folder)
    show(locks.diff_view(old, new), difference.to_dict(old, new), json=json)


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
    from aerie import capture
    from aerie import inventory as hosts

    path = optional_path(inventory)
    captured = capture.of_host(hosts.host(host, path), hosts.folder(path), name=name, like=like)
    if not (check or c.config.run.dry):
        written = capture.write_new(captured, hosts.folder(path))
        console_on(sys.stderr).print(f"written {written}")
    sys.stdout.write(captured.text)


collection = Collection("lock", lock_capture, lock_diff, lock_show)
