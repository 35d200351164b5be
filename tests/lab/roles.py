"""Applies one role to a lab host, by aerie's own playbook; for tests."""

import resource
import tempfile
from typing import Any

from aerie import apply
from lab import LabHost

__all__ = ["applied", "limits"]

RECEIPT = {
    "lock": "test",
    "lock_sha256": "0" * 64,
    "applied_at": "2026-01-01T00:00:00Z",
    "previous_lock": None,
    "layers": [],
}
# Another lab's host may have had the same address a moment ago, and an open connection to it would be used again.
CONNECTIONS = tempfile.TemporaryDirectory(prefix="aerie-cp-")


def applied(host: LabHost, layer: str, *, check: bool = False, **variables: Any) -> apply.HostResult:
    """How a play of this one layer ended, with these variables of the role; it never reboots."""
    given = apply.HostInput(
        host=host.name,
        layers=(layer,),
        group="test",
        group_variables={},
        variables={"aerie_receipt": RECEIPT, **variables},
    )
    common = {"aerie_may_reboot": False, "aerie_lock_text": "", "ansible_control_path_dir": CONNECTIONS.name}
    played = apply.play("provision", [given], inventory=host.inventory, variables=common, forks=1, check=check)
    return played.hosts[0]


def limits() -> dict[str, int]:
    """base_memlock and base_nofile that a host on this machine can have: no more than the machine's own hard limits."""
    memlock, nofile = (resource.getrlimit(which)[1] for which in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE))
    return {"base_memlock": memlock, "base_nofile": min(nofile, 1_048_576) if nofile > 0 else 1_048_576}
