"""Disposable hosts with systemd and sshd on this machine, for trying and testing. Nothing in aerie/ knows them."""

from .host import LabHost
from .lifecycle import HostStatus, down, gpu, hub_mode, repository_mode, status, up

__all__ = ["HostStatus", "LabHost", "down", "gpu", "hub_mode", "repository_mode", "status", "up"]
