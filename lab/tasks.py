"""Tasks of the collection `lab`."""

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task
from rich.console import Console
from rich.table import Table

from aerie.errors import UsageError

from . import lifecycle as lab

__all__ = ["collection"]

_out, _err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)


def _table(hosts: tuple[lab.HostStatus, ...]) -> Table:
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
    help={"count": "how many hosts, 1 to 99", "memory-mib": "limit of each host's memory"},
)
def up(c: Context, count: str, memory_mib: int = 2048) -> None:
    """Bring up disposable hosts lab01, lab02 …"""
    hosts = lab.up(_number(count), memory_bytes=memory_mib << 20, say=_err.print)
    _out.print(_table(lab.status()))
    _out.print(f"next: ssh -F {hosts[0].ssh_config} {hosts[0].name}", markup=False, highlight=False)


@task(auto_shortflags=False)
def down(c: Context) -> None:
    """Take down every lab host and all that the lab made."""
    names = lab.down()
    _out.print(f"removed: {', '.join(names)}" if names else "nothing was up")


@task(auto_shortflags=False)
def status(c: Context) -> None:
    """Show the lab's hosts."""
    hosts = lab.status()
    _out.print(_table(hosts) if hosts else "no lab host is up")


collection = Collection("lab", up, down, status)
