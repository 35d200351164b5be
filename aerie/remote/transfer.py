"""Whole files between this machine and a host, in pieces: what is too large for memory or for a program's output."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.inventory import Host

from .connection import CONNECT_TIMEOUT_S, connected
from .failures import Unreachable
from .running import require_connection

__all__ = ["fetch", "send"]

CHUNK = 1 << 18
QUIET_S = 60.0  # without a byte, the connection counts as broken
# Beside its place first: a file that is there is whole.
SEND = 'umask 022 && mkdir -p "$(dirname "$1")" && cat >"$1.part" && mv -f "$1.part" "$1"'


def send(host: Host, local: Path, path: str, *, sudo: bool = False) -> None:
    """Make `path` on the host hold what the local file holds; its folder is made if need be.

    Raises Unreachable, and AerieError with the host's words where it cannot be written.
    """

    def pump(channel: Any) -> None:
        with open(local, "rb") as file:
            while part := file.read(CHUNK):
                channel.sendall(part)
        channel.shutdown_write()

    _run(host, ["sh", "-c", SEND, "sh", path], sudo, pump, stdin=local)


def fetch(host: Host, path: str, local: Path, *, sudo: bool = False) -> None:
    """Make the local file hold what `path` on the host holds; its folder must be there. Raises as send does."""
    part = local.with_name(f".{local.name}.part")

    def pump(channel: Any) -> None:
        with open(part, "wb") as file:
            while data := channel.recv(CHUNK):
                file.write(data)

    try:
        _run(host, ["cat", path], sudo, pump, stdout=part)
        os.replace(part, local)
    finally:
        part.unlink(missing_ok=True)


def _run(
    host: Host,
    argv: list[str],
    sudo: bool,
    pump: Callable[[Any], None],
    *,
    stdin: Path | None = None,
    stdout: Path | None = None,
) -> None:
    require_connection(host)
    code, said = _locally(argv, sudo, stdin, stdout) if host.is_local else _over(host, argv, sudo, pump)
    if code != 0:
        raise AerieError(
            f"host {host.name}: {argv[-1]}",
            seen=said.strip() or f"exit {code}",
            expected="a file that is copied whole",
            remedy="Check the path, its permissions and the space there.",
        )


def _over(host: Host, argv: list[str], sudo: bool, pump: Callable[[Any], None]) -> tuple[int, str]:
    from paramiko.ssh_exception import SSHException

    try:
        with connected(host, CONNECT_TIMEOUT_S) as connection:
            prefix = "sudo -n -- " if sudo and connection.user != "root" else ""
            channel = connection.client.get_transport().open_session(timeout=QUIET_S)
            channel.settimeout(QUIET_S)
            channel.exec_command(prefix + shlex.join(argv))
            try:
                pump(channel)
            except OSError:  # it ended before it took all: its own words say why
                if not channel.exit_status_ready():
                    raise
            return channel.recv_exit_status(), channel.makefile_stderr().read(CHUNK).decode(errors="replace")
    except (SSHException, EOFError, OSError) as error:
        raise Unreachable(
            host,
            "ssh",
            seen=f"the connection broke: {error or type(error).__name__}",
            expected="a session until the file is copied",
            remedy="Is the host rebooting? Try again.",
        ) from error


def _locally(argv: list[str], sudo: bool, stdin: Path | None, stdout: Path | None) -> tuple[int, str]:
    own = ["sudo", "-n", "--", *argv] if sudo and os.geteuid() != 0 else argv
    with open(stdin or os.devnull, "rb") as given, open(stdout or os.devnull, "wb") as taken:
        done = subprocess.run(own, stdin=given, stdout=taken, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stderr.decode(errors="replace")
