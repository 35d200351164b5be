"""Plan hosts: probe them, and judge what they are by what their locks say they must be."""

from datetime import date
from pathlib import Path

from . import inventory, remote
from . import lock as locks
from .errors import AerieError, UsageError
from .inventory import Host
from .lock import Lock
from .plan import HostPlan, HostState, Plan, host_plan, unjudged
from .snapshot import Snapshot

__all__ = ["plan_hosts"]


def plan_hosts(pattern: str, inventory_file: Path | None = None, forks: int = 16) -> Plan:
    """What differs between these hosts and their locks: one probe a host, nothing changed.

    Raises UsageError for an unknown pattern or lock, before any host is reached.
    """
    hosts = inventory.select(pattern, inventory_file)
    chosen = {host.name: _lock(host, inventory.folder(inventory_file)) for host in hosts}
    probed = remote.probe_all(hosts, forks=forks)
    return Plan(hosts=tuple(_plan(host, chosen[host.name], probed[host.name]) for host in hosts))


def _lock(host: Host, folder: Path) -> Lock:
    if host.lock is None:
        raise UsageError(
            f"host {host.name}",
            seen="no lock",
            expected=f"aerie_lock in its inventory: {', '.join(locks.names(folder))}",
            remedy="Set aerie_lock in group_vars or host_vars.",
        )
    return locks.load(host.lock, folder)


def _plan(host: Host, lock: Lock, seen: Snapshot | AerieError) -> HostPlan:
    if isinstance(seen, Snapshot):
        return host_plan(host, lock, seen, date.today())
    state = HostState.UNREACHABLE if isinstance(seen, remote.Unreachable) else HostState.UNPROBED
    return unjudged(host.name, lock.name, state, f"{seen.seen}, expected {seen.expected}. {seen.remedy}")
