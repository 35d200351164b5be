"""The hosts of inventory/hosts.yml, read as Ansible reads it: groups, children, variables of groups and hosts."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UsageError
from .paths import repository

__all__ = ["Host", "host", "hosts", "require_local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host. user is None where ssh's own configuration decides; connection is Ansible's word ("local", "ssh")."""

    name: str
    address: str
    user: str | None
    connection: str

    @property
    def is_local(self) -> bool:
        """Is it the machine that aerie runs on?"""
        return self.connection == "local"


def hosts(path: Path | None = None) -> dict[str, Host]:
    """Every host by name, in the file's order. Raises UsageError if the file is not an inventory."""
    import yaml

    source = path or repository() / "inventory" / "hosts.yml"
    try:
        document = yaml.safe_load(source.read_text())
    except FileNotFoundError as error:
        raise _broken(source, "no such file", "an Ansible inventory in YAML") from error
    except yaml.YAMLError as error:
        raise _broken(source, str(error), "valid YAML") from error
    found: dict[str, dict[str, Any]] = {}
    for group, body in _mapping(source, "the file", document).items():
        for name, variables in _group(source, str(group), body, {}):
            # A host may stand in several groups; what a later place says is added to what an earlier one said.
            found.setdefault(name, {}).update(variables)
    return {name: _host(name, variables) for name, variables in found.items()}


def host(name: str, path: Path | None = None) -> Host:
    """The host of that name. Raises UsageError that names the nearest known ones."""
    known = hosts(path)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        raise UsageError(
            "host",
            seen=name,
            expected=f"a host of the inventory: {', '.join(near or known) or 'it names none'}",
            remedy="Add it to inventory/hosts.yml or correct the name.",
        )
    return known[name]


def require_local(host: Host) -> None:
    """Raises UsageError unless `host` is the machine that aerie runs on."""
    if not host.is_local:
        raise UsageError(
            f"host {host.name}",
            seen=f"connection {host.connection} to {host.address}",
            expected="a host with ansible_connection: local; runbooks do not run over ssh yet",
            remedy=f"Log in to {host.name}, clone aerie there and run it with --host localhost.",
        )


def _group(
    source: Path, group: str, body: object, inherited: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = _mapping(source, group, body)
    unknown = sorted(set(map(str, fields)) - {"children", "hosts", "vars"})
    if unknown:
        raise _broken(source, f"{', '.join(unknown)} in group {group}", "children, hosts or vars")
    variables = {**inherited, **_mapping(source, f"{group}.vars", fields.get("vars"))}
    for name, own in _mapping(source, f"{group}.hosts", fields.get("hosts")).items():
        yield str(name), {**variables, **_mapping(source, str(name), own)}
    for child, inner in _mapping(source, f"{group}.children", fields.get("children")).items():
        yield from _group(source, str(child), inner, variables)


def _mapping(source: Path, where: str, value: object) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _broken(source, f"{type(value).__name__} at {where}", "a mapping")
    return value


def _host(name: str, variables: Mapping[str, Any]) -> Host:
    # As Ansible: localhost needs no ssh unless the inventory says so.
    connection = variables.get("ansible_connection") or ("local" if name == "localhost" else "ssh")
    user = variables.get("ansible_user")
    return Host(
        name=name,
        address=str(variables.get("ansible_host") or name),
        user=None if user is None else str(user),
        connection=str(connection),
    )


def _broken(source: Path, seen: str, expected: str) -> UsageError:
    return UsageError(str(source), seen=seen, expected=expected, remedy="Correct the file.")
