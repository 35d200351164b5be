"""Snapshots of hosts: the probe goes in on stdin, one JSON document comes out; nothing is left on the host."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aerie.errors import AerieError
from aerie.inventory import Host
from aerie.probe import bundle

from .connection import CONNECT_TIMEOUT_S
from .exchange import Result
from .running import run_shell

if TYPE_CHECKING:
    from aerie.snapshot import Snapshot

__all__ = ["Unprobed", "probe", "probe_all"]

TIMEOUT_S = 60
CAP_BYTES = 64 << 20
NO_SUDO = re.compile(
    r"^sudo: (a (password|terminal) is required|.*not found)|is not in the sudoers|may not run sudo", re.M
)
NO_PYTHON = re.compile(r"python\S*: (command )?not found|python\S*: No such file", re.MULTILINE)


class Unprobed(AerieError):
    """A host was reached and gave no snapshot. cause: "sudo", "python" or "probe"."""

    def __init__(self, host: Host, cause: str, *, seen: object, expected: str, remedy: str) -> None:
        super().__init__(f"host {host.name}", seen=seen, expected=expected, remedy=remedy)
        self.cause = cause


def probe(
    host: Host,
    *,
    timeout_s: float = TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> "Snapshot":
    """The host's snapshot, read as root in one round trip; changes nothing there.

    On this machine without sudo it is read as the user, and what needs root is Unknown.
    Raises Unreachable and Unprobed with the cause told apart.
    """
    result = run_shell(
        host,
        _command(host),
        stdin=bundle.script(),
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        cap_bytes=CAP_BYTES,
        meanwhile=_prepare,
    )
    if result.exit_code != 0:
        raise _unprobed(host, result)
    from aerie import snapshot

    return snapshot.parse(result.stdout)


def probe_all(
    hosts: Sequence[Host],
    forks: int = 16,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> "dict[str, Snapshot | AerieError]":
    """The snapshot of each host by name, in the given order; where there is none, the error that says why."""

    def one(host: Host) -> "Snapshot | AerieError":
        try:
            return probe(host, connect_timeout_s=connect_timeout_s)
        except AerieError as error:
            return error

    bundle.script()  # made once, before the threads ask for it
    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(hosts)))) as pool:
        return dict(zip((host.name for host in hosts), pool.map(one, hosts), strict=True))


def _prepare() -> None:
    from aerie import snapshot  # while the host works

    snapshot.prepare()


def _command(host: Host) -> str:
    """Starts the probe in a shell of the user's session: its PATH and limits are what others get there too."""
    # -I and -S: nothing that the host adds to Python is wanted, and without it Python starts faster.
    sudo = "" if not _wants_sudo(host) else 'if [ "$(id -u)" != 0 ]; then set -- sudo -n -- "$@"; fi; '
    limits = '"$(ulimit -S -l)" "$(ulimit -S -n)" "$(ulimit -S -s)"'
    script = f'set -- {_python(host)} -I -S - "$PATH" {limits}; {sudo}exec "$@"'
    argv = ["sh", "-c", script]
    if host.is_local and os.geteuid() == 0 and shutil.which("runuser"):
        # The limits of this process are those of the session that it was started from, perhaps long ago. runuser
        # opens a new one, where PAM is set up; over ssh the connection is one.
        session = "runuser -u root --"
        argv = ["sh", "-c", f'{session} true 2>/dev/null && exec {session} "$@"; exec "$@"', "sh", *argv]
    return shlex.join(argv)


def _python(host: Host) -> str:
    # Ansible's words for "look for it yourself" begin with auto.
    named = str(host.variables.get("ansible_python_interpreter") or "auto")
    return "python3" if named.startswith("auto") else shlex.quote(named)


def _wants_sudo(host: Host) -> bool:
    if host.is_local:
        return os.geteuid() != 0 and _may_sudo()
    return str(host.variables.get("ansible_become", True)).lower() not in ("false", "no", "0")


def _may_sudo() -> bool:
    if shutil.which("sudo") is None:
        return False
    argv = ["sudo", "-n", "true"]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _unprobed(host: Host, result: Result) -> Unprobed:
    said = result.tail or f"exit {result.exit_code}"
    if NO_PYTHON.search(result.stderr) or "the probe needs" in result.stderr:
        return Unprobed(
            host,
            "python",
            seen=said,
            expected="python3 on the host, 3.9 or newer",
            remedy="Install it there: apt-get install python3",
        )
    if NO_SUDO.search(result.stderr):
        return Unprobed(
            host,
            "sudo",
            seen=said,
            expected="sudo without a password",
            remedy=f"Give the user a line in /etc/sudoers.d, {host.user or 'USER'} ALL=(ALL) NOPASSWD: ALL, "
            "or set ansible_user: root.",
        )
    return Unprobed(
        host,
        "probe",
        seen=said,
        expected="a snapshot",
        remedy="Report it with these lines: the probe should not fail whatever the host is.",
    )
