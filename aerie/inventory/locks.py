"""The lock of a host: what the inventory names, with what the inventory changes in it for this host."""

from pathlib import Path

from aerie import lock as locks
from aerie.errors import UsageError
from aerie.lock import Lock

from .host import Host
from .pattern import folder

__all__ = ["lock_of"]


def lock_of(host: Host, name: str | None = None, path: Path | None = None) -> Lock:
    """The lock of a host, with the host's own variables in it. name: instead of its own; path: of the inventory.

    Raises UsageError for a host without a lock, and as `lock.load`.
    """
    wanted = name or host.lock
    if wanted is None:
        known = ", ".join(locks.names(folder(path)))
        raise UsageError(
            f"host {host.name}",
            seen="no lock",
            expected="aerie_lock in the inventory, or --lock",
            remedy=f"Set aerie_lock to one of {known}, in group_vars/ or host_vars/{host.name}/.",
        )
    return locks.with_variables(locks.load(wanted, folder(path)), host.variables)
