"""Disposable hosts with systemd and sshd on this machine, for trying and testing. Nothing in aerie/ knows them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .host import LabHost
    from .lifecycle import HostStatus, down, gpu, hub_mode, repository_mode, status, up

__all__ = ["HostStatus", "LabHost", "down", "gpu", "hub_mode", "repository_mode", "status", "up"]


def __getattr__(name: str) -> Any:
    # Imported at first use: every start of Invoke imports this package, for its tasks.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import host, lifecycle

    return getattr(lifecycle, name, None) or getattr(host, name)
