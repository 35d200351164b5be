"""Connections by ssh: who to connect to and how, from the inventory and ssh's own configuration; why one fails.

Host keys are always checked: a key that is not known, or another than the known one, ends the connection.
"""

import errno
import logging
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabric import Config, Connection
from paramiko import SSHConfig
from paramiko.client import RejectPolicy
from paramiko.hostkeys import HostKeys
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    ConfigParseError,
    NoValidConnectionsError,
    SSHException,
)

from aerie.errors import AerieError, UsageError
from aerie.inventory import Host

__all__ = ["CONNECT_TIMEOUT_S", "Unreachable", "connected"]

CONNECT_TIMEOUT_S = 10
SSH_CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
# Where Ansible takes ssh's arguments from. ansible_ssh_args stands for its own defaults (ControlPersist).
ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
SHORT = {"-J": "ProxyJump", "-i": "IdentityFile", "-p": "Port", "-l": "User"}


# Without a handler Python prints paramiko's tracebacks to stderr; what they say is in our errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Unreachable(AerieError):
    """No connection to a host. cause: "name", "timeout", "route", "refused", "host-key", "login" or "ssh"."""

    def __init__(self, host: Host, cause: str, *, seen: object, expected: str, remedy: str) -> None:
        super().__init__(f"host {host.name}", seen=seen, expected=expected, remedy=remedy)
        self.cause = cause


@contextmanager
def connected(host: Host, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> Iterator[Connection]:
    """An open connection, closed at the end. Raises Unreachable, and UsageError for arguments that nobody knows."""
    way = list(_hops(_connection(host, connect_timeout_s)))
    try:
        for hop in reversed(way):  # the farthest jump host first, so that an error names the one that it is about
            try:
                hop.open()
            except Exception as error:
                raise _unreachable(host, hop, error, connect_timeout_s) from error
        yield way[0]
    finally:
        for hop in way:
            hop.close()


def _hops(connection: Any) -> Iterator[Connection]:
    """The host's connection, then those of the jump hosts on the way to it."""
    while isinstance(connection, Connection):
        yield connection
        connection = connection.gateway


def _connection(host: Host, connect_timeout_s: float) -> Connection:
    variables = host.variables
    options = _options(host)
    config = Config(ssh_config=_ssh_config(host, options))
    key = next((str(variables[name]) for name in KEYS if variables.get(name)), None)
    connection = Connection(
        host.address,
        user=host.user,
        port=host.port,
        config=config,
        connect_timeout=int(connect_timeout_s) or 1,
        connect_kwargs={
            "key_filename": [os.path.expanduser(key)] if key else [],
            # Without a limit paramiko waits 15 s for a greeting, and 30 s for a login.
            "banner_timeout": connect_timeout_s,
            "auth_timeout": connect_timeout_s,
        },
    )
    for hop in _hops(connection):
        _know_keys(hop)
        hop.client.set_missing_host_key_policy(RejectPolicy())  # fabric would add unknown keys
    return connection


def _options(host: Host) -> list[tuple[str, str]]:
    """The inventory's arguments of ssh as lines of its configuration."""
    found = []
    for name in ARGUMENTS:
        try:
            words = iter(shlex.split(str(host.variables.get(name) or "")))
            for word in words:
                if word == "-o":
                    key, _, value = next(words).replace("=", " ", 1).partition(" ")
                    found.append((key, value.strip()))
                elif word.startswith("-o"):
                    key, _, value = word[2:].replace("=", " ", 1).partition(" ")
                    found.append((key, value.strip()))
                elif word in SHORT:
                    found.append((SHORT[word], next(words)))
                elif word not in ("-C", "-q", "-4", "-6", "-v"):
                    raise ValueError(f"{word} is not an argument that aerie understands")
        except (ValueError, StopIteration) as error:
            raise UsageError(
                f"host {host.name}: {name}",
                seen=str(error) or "an argument without its value",
                expected=f"arguments of ssh: -o Key=value, {', '.join(SHORT)}",
                remedy="Move the rest to ~/.ssh/config, which aerie reads too.",
            ) from error
    return found


def _ssh_config(host: Host, options: list[tuple[str, str]]) -> SSHConfig:
    """ssh's configuration with the inventory's options in front: what stands first wins, as with ssh."""
    own = "".join(f"  {key} {value}\n" for key, value in options)
    text = f"Host {host.address}\n{own}\n" if own else ""
    for path in map(os.path.expanduser, SSH_CONFIGS):
        if os.path.isfile(path):
            text += f"Host *\n{Path(path).read_text()}\n"
    try:
        return SSHConfig.from_text(text)
    except ConfigParseError as error:
        raise UsageError(
            f"host {host.name}", seen=str(error), expected="a configuration of ssh", remedy=f"Correct {SSH_CONFIGS[0]}."
        ) from error


def _know_keys(hop: Connection) -> None:
    settings = hop.ssh_config
    named = settings.get("userknownhostsfile")
    files = shlex.split(named) if named else ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
    files += shlex.split(settings.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts"))
    for file in map(os.path.expanduser, files):
        if os.path.isfile(file):
            hop.client.load_system_host_keys(file)
            _add_alias(hop, settings.get("hostkeyalias"), HostKeys(file))


def _add_alias(hop: Connection, alias: str | None, known: HostKeys) -> None:
    """paramiko does not know HostKeyAlias: enter the alias' keys under the name that it will look for."""
    if alias is None:
        return
    name = hop.host if hop.port == 22 else f"[{hop.host}]:{hop.port}"
    for kind, key in (known.lookup(alias) or {}).items():
        hop.client.get_host_keys().add(name, kind, key)


def _unreachable(host: Host, connection: Connection, error: Exception, timeout_s: float) -> Unreachable:
    """The error told apart, each with what to do about it."""
    at = f"{connection.user}@{connection.host}:{connection.port}"
    if isinstance(error, NoValidConnectionsError):
        # One for each of the name's addresses; the first one's is as good as any.
        error = next(iter(error.errors.values()), error)

    def because(cause: str, seen: str, expected: str, remedy: str) -> Unreachable:
        return Unreachable(host, cause, seen=seen, expected=expected, remedy=remedy)

    if isinstance(error, socket.gaierror):
        return because(
            "name", f"the name {connection.host} does not resolve", "an address", "Set ansible_host in the inventory."
        )
    if isinstance(error, BadHostKeyException):
        known = _fingerprint(error.expected_key)
        return because(
            "host-key",
            f"{at} shows the key {_fingerprint(error.key)}",
            f"the known one, {known}",
            "If the host was installed anew, compare the key at its console "
            f"(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then: ssh-keygen -R {_known_as(connection)}",
        )
    if isinstance(error, SSHException) and "not found in known_hosts" in str(error):
        return because(
            "host-key",
            f"{at} has a key that nobody vouched for",
            "a key in known_hosts",
            f"Connect once by hand and compare its fingerprint: ssh {connection.original_host}",
        )
    if isinstance(error, (AuthenticationException, FileNotFoundError)) or _is_login(error):
        return because(
            "login",
            f"{at} refuses the login: {error}",
            "a user and a key that it lets in",
            f"Check ansible_user and ansible_ssh_private_key_file; by hand: ssh {at.rpartition(':')[0]}",
        )
    if isinstance(error, ConnectionRefusedError):
        return because(
            "refused", f"{at} refuses connections", "an ssh server", "Check that sshd runs there, and ansible_port."
        )
    if _is_timeout(error):
        return because(
            "timeout",
            f"no answer from {at} within {timeout_s:g} s",
            "an ssh server",
            "Check that the host is up, its address, and the firewalls between.",
        )
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return because(
            "route",
            f"no way to {at}: {error.strerror}",
            "a host that can be reached",
            "Check that the host is up, its address, and this machine's network.",
        )
    return because(
        "ssh", f"{at}: {error or type(error).__name__}", "an ssh session", f"By hand: ssh -v {at.rpartition(':')[0]}"
    )


def _is_timeout(error: Exception) -> bool:
    # A greeting that does not come is one that paramiko could not read, or "No existing session" a moment later.
    is_late = isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError)
    return is_late or any(words in str(error) for words in ("timed out", "Timeout", "No existing session"))


def _is_login(error: Exception) -> bool:
    # What paramiko says when it has no key to offer, and for a key file it cannot read.
    return any(words in str(error) for words in ("No authentication methods", "not a valid", "encountered"))


def _fingerprint(key: Any) -> str:
    return str(key.fingerprint)


def _known_as(connection: Connection) -> str:
    return connection.host if connection.port == 22 else f"'[{connection.host}]:{connection.port}'"
