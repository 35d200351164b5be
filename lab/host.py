"""A host of the lab, as its users see it."""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LabHost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHost:
    """name: "lab01"; address: IPv4; state: the lab's folder, with its key, known_hosts, ssh_config and inventory."""

    name: str
    address: str
    state: Path

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F` and `scp -F`: knows the host's name, key and host key."""
        return self.state / "ssh_config"

    @property
    def inventory(self) -> Path:
        """The Ansible inventory of the whole lab; its group is `lab`. Locks lie in locks/ beside it."""
        return self.state / "inventory/hosts.yml"

    @property
    def folder(self) -> Path:
        """The host's files on this machine: upper/ is what it wrote over the base image."""
        return self.state / "hosts" / self.name

    @property
    def has_gpus(self) -> bool:
        """Are cards plugged in?"""
        return (self.folder / "upper/etc/lab/scenario.json").exists()

    def ssh(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program on the host as root; exit 255: ssh failed, or a signal killed the program."""
        command = ["ssh", "-F", str(self.ssh_config), self.name, "--", shlex.join(argv)]
        return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=timeout_s)
