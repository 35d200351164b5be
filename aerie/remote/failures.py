"""Why a connection failed: each cause told apart, with what to do about it."""

import errno
import socket
from typing import Any

from fabric import Connection
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    SSHException,
)

from aerie.errors import AerieError
from aerie.inventory import Host

__all__ = ["Unreachable", "unreachable"]


class Unreachable(AerieError):
    """No connection to a host. cause: "name", "timeout", "route", "refused", "host-key", "login" or "ssh"."""

    def __init__(self, host: Host, cause: str, *, seen: object, expected: str, remedy: str) -> None:
        super().__init__(f"host {host.name}", seen=seen, expected=expected, remedy=remedy)
        self.cause = cause


def unreachable(host: Host, connection: Connection, error: Exception, timeout_s: float) -> Unreachable:
    """The error of an attempt to open `connection`, which is the host's or a jump host's on the way."""
    if isinstance(error, NoValidConnectionsError):
        # One for each of the name's addresses; the first one's is as good as any.
        error = next(iter(error.errors.values()), error)
    cause, seen, expected, remedy = (
        _name(connection, error)
        or _host_key(connection, error)
        or _login(connection, error)
        or _network(connection, error, timeout_s)
        or (
            "ssh",
            f"{_at(connection)}: {error or type(error).__name__}",
            "an ssh session",
            f"By hand: ssh -v {_who(connection)}",
        )
    )
    return Unreachable(host, cause, seen=seen, expected=expected, remedy=remedy)


_Why = tuple[str, str, str, str]
"""cause, seen, expected, remedy"""


def _name(connection: Connection, error: Exception) -> _Why | None:
    if not isinstance(error, socket.gaierror):
        return None
    return "name", f"the name {connection.host} does not resolve", "an address", "Set ansible_host in the inventory."


def _host_key(connection: Connection, error: Exception) -> _Why | None:
    if isinstance(error, BadHostKeyException):
        return (
            "host-key",
            f"{_at(connection)} shows the key {_fingerprint(error.key)}",
            f"the known one, {_fingerprint(error.expected_key)}",
            "If the host was installed anew, compare the key at its console "
            f"(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then: ssh-keygen -R {_known_as(connection)}",
        )
    if isinstance(error, SSHException) and "not found in known_hosts" in str(error):
        return (
            "host-key",
            f"{_at(connection)} has a key that nobody vouched for",
            "a key in known_hosts",
            f"Connect once by hand and compare its fingerprint: ssh {connection.original_host}",
        )
    return None


def _login(connection: Connection, error: Exception) -> _Why | None:
    # The words are what paramiko says when it has no key to offer, and for a key file it cannot read.
    is_key = any(words in str(error) for words in ("No authentication methods", "not a valid", "encountered"))
    if not (is_key or isinstance(error, AuthenticationException | FileNotFoundError)):
        return None
    return (
        "login",
        f"{_at(connection)} refuses the login: {error}",
        "a user and a key that it lets in",
        f"Check ansible_user and ansible_ssh_private_key_file; by hand: ssh {_who(connection)}",
    )


def _network(connection: Connection, error: Exception, timeout_s: float) -> _Why | None:
    at = _at(connection)
    if isinstance(error, ConnectionRefusedError):
        return "refused", f"{at} refuses connections", "an ssh server", "Check that sshd runs there, and ansible_port."
    if _is_timeout(error):
        return (
            "timeout",
            f"no answer from {at} within {timeout_s:g} s",
            "an ssh server",
            "Check that the host is up, its address, and the firewalls between.",
        )
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return (
            "route",
            f"no way to {at}: {error.strerror}",
            "a host that can be reached",
            "Check that the host is up, its address, and this machine's network.",
        )
    return None


def _is_timeout(error: Exception) -> bool:
    # A greeting that does not come is one that paramiko could not read, or "No existing session" a moment later.
    is_late = isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError)
    return is_late or any(words in str(error) for words in ("timed out", "Timeout", "No existing session"))


def _fingerprint(key: Any) -> str:
    return str(key.fingerprint)


def _who(connection: Connection) -> str:
    return f"{connection.user}@{connection.host}"


def _at(connection: Connection) -> str:
    return f"{_who(connection)}:{connection.port}"


def _known_as(connection: Connection) -> str:
    return str(connection.host) if connection.port == 22 else f"'[{connection.host}]:{connection.port}'"
