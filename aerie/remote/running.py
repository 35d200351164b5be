"""Programs and files on a host."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fabric import Connection
from paramiko.ssh_exception import SSHException

from aerie.errors import AerieError, UsageError
from aerie.inventory import Host

from . import exchange
from .connection import CONNECT_TIMEOUT_S, connected
from .exchange import Result
from .failures import Unreachable

__all__ = ["put", "require_connection", "run", "run_over", "run_shell"]

CAP_BYTES = 1 << 20
BY_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
# Makes the folder, writes beside the place, then moves it there: a reader sees the old file or the new one, whole.
PUT = 'umask 077 && mkdir -p "$(dirname "$1")" && cat > "$1.new" && chmod "$2" "$1.new" && mv -f "$1.new" "$1"'


def run(
    host: Host,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float = 60,
    sudo: bool = False,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> Result:
    """What the program did on the host, whatever its exit code; argv is quoted word by word.

    sudo: as root, without a password; nothing is put in front where the user is root. At most 1 MiB of each output.
    Raises Unreachable when there is no connection, AerieError when it takes too long or prints too much.
    """
    return run_shell(
        host, shlex.join(argv), stdin=stdin, timeout_s=timeout_s, sudo=sudo, connect_timeout_s=connect_timeout_s
    )


def put(host: Host, path: str, content: bytes, mode: int = 0o644, *, sudo: bool = False) -> None:
    """Make `path` on the host hold `content` with this mode, all at once; its folder is made if need be.

    Raises as `run` does, and AerieError with the host's words when it cannot be written.
    """
    result = run(host, ["sh", "-c", PUT, "sh", path, f"{mode:o}"], stdin=content, sudo=sudo)
    if result.exit_code != 0:
        raise AerieError(
            f"host {host.name}: {path}",
            seen=result.tail or f"exit {result.exit_code}",
            expected=f"{len(content)} bytes written",
            remedy="Check the path, its permissions and the space there.",
        )


def run_shell(
    host: Host,
    command: str,
    *,
    stdin: bytes = b"",
    timeout_s: float = 60,
    sudo: bool = False,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    cap_bytes: int = CAP_BYTES,
    meanwhile: Callable[[], None] = exchange.nothing,
) -> Result:
    """As `run`, with a command of the host's shell: the caller quotes. meanwhile: called while a remote host works."""
    require_connection(host)
    if not host.is_local:
        with connected(host, connect_timeout_s) as connection:
            return run_over(
                host,
                connection,
                command,
                stdin=stdin,
                timeout_s=timeout_s,
                sudo=sudo,
                cap_bytes=cap_bytes,
                meanwhile=meanwhile,
            )
    prefix = "sudo -n -- " if sudo and os.geteuid() != 0 else ""
    with _explained(host, command, timeout_s, cap_bytes):
        return exchange.locally(["sh", "-c", prefix + command], stdin, timeout_s, cap_bytes)


def run_over(
    host: Host,
    connection: Connection,
    command: str,
    *,
    stdin: bytes = b"",
    timeout_s: float = 60,
    sudo: bool = False,
    cap_bytes: int = CAP_BYTES,
    meanwhile: Callable[[], None] = exchange.nothing,
) -> Result:
    """As `run_shell`, over a connection that is open, which stays so."""
    prefix = "sudo -n -- " if sudo and connection.user != "root" else ""
    with _explained(host, command, timeout_s, cap_bytes):
        channel = connection.client.get_transport().open_session(timeout=timeout_s)
        return exchange.over(channel, prefix + command, stdin, timeout_s, cap_bytes, meanwhile)


def require_connection(host: Host) -> None:
    """Raises UsageError unless the host is reached by ssh or is this machine."""
    if not host.is_local and host.connection not in BY_SSH:
        raise UsageError(
            f"host {host.name}",
            seen=f"ansible_connection: {host.connection}",
            expected="ssh or local",
            remedy="Correct it in the inventory.",
        )


@contextmanager
def _explained(host: Host, command: str, timeout_s: float, cap_bytes: int) -> Iterator[None]:
    """Makes of what an exchange raises an error that an operator can act on."""
    try:
        yield
    except exchange.TooSlow as error:
        raise _failed(host, command, f"no end after {timeout_s:g} s", "Look at the host's load and disks.") from error
    except exchange.TooMuch as error:
        raise _failed(host, command, f"more than {cap_bytes} bytes of output", "Run it by hand.") from error
    except (SSHException, EOFError, OSError) as error:
        raise Unreachable(
            host,
            "ssh",
            seen=f"the connection broke: {error or type(error).__name__}",
            expected="a session until the program ends",
            remedy="Is the host rebooting? Try again.",
        ) from error


def _failed(host: Host, command: str, seen: str, remedy: str) -> AerieError:
    words = command if len(command) < 80 else f"{command[:77]}..."
    return AerieError(f"host {host.name}: {words}", seen=seen, expected="an end in time", remedy=remedy)
