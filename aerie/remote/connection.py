"""Connections by ssh: who to connect to and how, from the inventory and from ssh's own configuration.

Host keys are always checked: a key that is not known, or another than the known one, ends the connection.
"""

import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabric import Config, Connection
from paramiko import SSHConfig
from paramiko.client import RejectPolicy
from paramiko.hostkeys import HostKeys
from paramiko.ssh_exception import ConfigParseError

from aerie.errors import UsageError
from aerie.inventory import Host

from .failures import unreachable

__all__ = ["CONNECT_TIMEOUT_S", "connected"]

CONNECT_TIMEOUT_S = 10
SSH_CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
# Where Ansible takes ssh's arguments from. ansible_ssh_args stands for its own defaults (ControlPersist).
ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
SHORT = {"-J": "ProxyJump", "-i": "IdentityFile", "-p": "Port", "-l": "User"}


# Without a handler Python prints paramiko's tracebacks to stderr; what they say is in our errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@contextmanager
def connected(host: Host, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> Iterator[Connection]:
    """An open connection, closed at the end. Raises Unreachable, and UsageError for arguments that nobody knows."""
    way = list(_hops(_connection(host, connect_timeout_s)))
    try:
        for hop in reversed(way):  # the farthest jump host first, so that an error names the one that it is about
            try:
                hop.open()
            except Exception as error:
                raise unreachable(host, hop, error, connect_timeout_s) from error
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
