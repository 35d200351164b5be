"""testinfra connections to hosts of the inventory: OpenSSH, one connection for all that a run asks."""

import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import testinfra
from testinfra.host import Host as Connection

from aerie.inventory import Host

__all__ = ["Connections"]

# A dead host ends the question after half a minute; without a key nobody is asked for a password.
OPTIONS = "-o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3"


class Connections:
    """Opens one connection per host, kept until close."""

    def __init__(self) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="aerie-ssh-")  # a short path: sockets allow 108 characters
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, threading.Thread] = {}

    def open_early(self, host: Host) -> None:
        """Begin to connect, while the tests are collected; what goes wrong is told to the first that asks something."""
        connection = self._open[host.name] = self._connect(host)
        self._opening[host.name] = threading.Thread(target=connection.run, args=("true",), daemon=True)
        self._opening[host.name].start()

    def to(self, host: Host) -> Connection:
        """The connection to this host; unless it was opened early it connects at the first question."""
        if host.name not in self._open:
            self._open[host.name] = self._connect(host)
        if host.name in self._opening:
            self._opening.pop(host.name).join()
        return self._open[host.name]

    def close(self) -> None:
        """End every connection; one that does not end in time ends by itself a minute later (ControlPersist)."""
        for opening in self._opening.values():
            opening.join()
        with self._sockets as folder, suppress(subprocess.TimeoutExpired):
            for socket in Path(folder).iterdir():
                argv = ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "aerie"]
                subprocess.run(argv, capture_output=True, timeout=10, check=False)

    def _connect(self, host: Host) -> Connection:
        if host.is_local:
            return testinfra.get_host("local://")
        variables = host.variables
        keys = ("ansible_ssh_private_key_file", "ansible_private_key_file")
        extra = [variables.get(f"ansible_ssh_{name}_args") for name in ("common", "extra")]
        address = f"[{host.address}]" if ":" in host.address else host.address
        user, port = f"{host.user}@" if host.user else "", f":{host.port}" if host.port else ""
        return testinfra.get_host(
            f"ssh://{user}{address}{port}",
            ssh_identity_file=next((variables[key] for key in keys if variables.get(key)), None),
            ssh_extra_args=" ".join([OPTIONS, *(str(one) for one in extra if one)]),
            controlpath=str(Path(self._sockets.name) / "%%C"),  # testinfra formats it: %C for ssh
        )
