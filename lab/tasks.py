"""Tasks of the collection `lab`."""

from typing import TYPE_CHECKING

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from aerie.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .lifecycle import HostStatus

__all__ = ["collection"]


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True)


def _table(hosts: "tuple[HostStatus, ...]") -> "Table":
    from rich.table import Table

    table = Table("host", "address", "state", "memory", box=None, pad_edge=False)
    for host in hosts:
        state = "answers" if host.answers else "running, no ssh" if host.is_running else "stopped"
        memory = "" if host.memory_bytes is None else f"{host.memory_bytes >> 20} MiB"
        table.add_row(host.name, host.address, state, memory)
    return table


def _number(count: str) -> int:
    if not count.isdecimal():
        raise UsageError("lab.up", seen=count, expected="a number of hosts", remedy="Try: invoke lab.up 2")
    return int(count)


@task(
    auto_shortflags=False,
    positional=["count"],
    help={
        "count": "how many hosts, 1 to 99",
        "gpus": "scenario of new hosts (lab/scenarios), bare: cards without a driver, none: no cards",
        "suite": "noble, trixie or bookworm; left out: the first whose archive this machine reaches",
        "memory-mib": "limit of each host's memory",
    },
)
def up(c: Context, count: str, gpus: str = "none", suite: str = "", memory_mib: int = 2048) -> None:
    """Bring up disposable hosts lab01, lab02 …"""
    from . import lifecycle as lab

    hosts = lab.up(
        _number(count), gpus=gpus, suite=suite, memory_bytes=memory_mib << 20, say=_console(stderr=True).print
    )
    _console().print(_table(lab.status()))
    _console().print(f"next: ssh -F {hosts[0].ssh_config} {hosts[0].name}", markup=False, highlight=False)


@task(
    auto_shortflags=False,
    positional=["host", "scenario"],
    help={"host": "lab01 …", "scenario": "a name of lab/scenarios; healthy8: nothing is wrong"},
)
def gpu(c: Context, host: str, scenario: str) -> None:
    """Give a running host's cards another scenario."""
    from . import lifecycle as lab

    chosen = lab.gpu(host, scenario)
    _console().print(f"{host}: {chosen.about}; finding: {chosen.finding or 'none'}", markup=False, highlight=False)


@task(
    auto_shortflags=False,
    positional=["mode"],
    help={"mode": "gone, stale (packages missing), bad-hash, rotated-key; normal mends it"},
)
def repository(c: Context, mode: str) -> None:
    """Let the hosts' package repository go wrong."""
    from . import lifecycle as lab
    from .repository import MODES

    lab.repository_mode(mode)
    _console().print(f"the repository is {mode}: {MODES[mode]}", markup=False, highlight=False)


@task(
    name="hub",
    auto_shortflags=False,
    positional=["mode"],
    help={
        "mode": "gone, a status (404), stall, cut, no-range, slow, truncated, flipped, expired, …; normal mends it",
        "path": "pattern of the files that it is for; of requests where it starts with /",
        "times": "requests that it meets; 0: all",
    },
)
def hub(c: Context, mode: str, path: str = "*", times: int = 0) -> None:
    """Let the hosts' model hub go wrong."""
    from . import lifecycle as lab
    from .hub.gateway import MODES

    lab.hub_mode(mode, path=path, times=times or None)
    _console().print(f"the hub is {mode}: {MODES[mode]}", markup=False, highlight=False)


@task(auto_shortflags=False)
def down(c: Context) -> None:
    """Take down every lab host and all that the lab made."""
    from . import lifecycle as lab

    names = lab.down()
    _console().print(f"removed: {', '.join(names)}" if names else "nothing was up")


@task(auto_shortflags=False)
def status(c: Context) -> None:
    """Show the lab's hosts."""
    from . import lifecycle as lab

    hosts = lab.status()
    _console().print(_table(hosts) if hosts else "no lab host is up")


collection = Collection("lab", up, down, gpu, hub, repository, status)
