"""Variables of hosts: checked by name, type and value before anything uses them.

aerie's own: aerie_*, and `<layer>_*` of the roles. Others belong to somebody else and are left alone.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from aerie.choice import nearest
from aerie.findings.catalogue import check_id
from aerie.layers import LAYERS
from aerie.lock import Lock
from aerie.paths import shown
from aerie.runbook.yamlfile import Document, Keys, SpecError, validate

from .host import Gpus, Host, Waiver
from .source import Inventory, origin, quiet
from .specs import check, options

__all__ = ["read_hosts"]

# What a connection needs, templates resolved; all else of ansible_* is for the play, which resolves its own.
CONNECTION = ("ansible_connection", "ansible_host", "ansible_port", "ansible_user", "ansible_python_interpreter")


class Own(BaseModel):
    """Variables of a host that no role reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    aerie_lock: str | None = Field(default=None, min_length=1)
    """The lock that the host must match."""
    aerie_gpus: Gpus = Gpus()
    """The GPUs that it ought to have."""
    aerie_waivers: tuple[Waiver, ...] = ()
    """Findings that may stay for a time."""
    aerie_reboot_timeout_s: int = Field(default=1800, ge=1)
    """How long `provision` waits for the host after a reboot: servers with 8 GPUs take more than ten minutes."""


class _NotFilledIn(Exception):
    """A template that lacks a variable; the problem is noted already."""


def read_hosts(inventory: Inventory, names: Iterable[str]) -> Iterator[Host]:
    """The hosts of these names. Raises SpecError with every variable that is wrong, each told once."""
    read = [(name, *_read(inventory, name)) for name in names]
    # A variable of a group is the same for all of its hosts.
    problems = {str(problem): problem for _, document, _ in read for problem in document.problems}
    if problems:
        raise SpecError(problems.values())
    return (_host(inventory, name, document.data, own) for name, document, own in read if own is not None)


def _read(inventory: Inventory, name: str) -> tuple[Document, Own | None]:
    raw = inventory.variables(name)
    document = Document(file=shown(inventory.path), data={})
    for key, value in raw.items():
        document.places[(str(key),)] = origin(key) or origin(value) or f"{document.file}: host {name}"
        if _is_vaulted(value):
            if _owner(str(key)):
                document.problem((key,), "a vaulted value", "plain text: plan reads it before Ansible could decrypt it")
            continue
        with contextlib.suppress(_NotFilledIn):
            resolved = _resolved(inventory, raw, str(key), value, document)
            document.data[str(key)] = _plain(resolved, (str(key),), document)
    for key in document.data:
        _check(key, document)
    own = validate(_model(), document)
    for index, waiver in enumerate(own.aerie_waivers if own else ()):
        check_id(("aerie_waivers", index, "finding"), waiver.finding, document)
    return document, own


def _check(key: str, document: Document) -> None:
    layer = _owner(key)
    if not layer or key in _model().model_fields:
        return
    known = options(layer) if layer != "aerie" else {}
    if key in known:
        check((key,), known[key], document.data[key], document)
    else:
        names = [name for name in (*_model().model_fields, *known) if _owner(name) == layer]
        where = f"one of {', '.join(names)}" if layer == "aerie" else f"a variable of the role {layer}"
        document.problem((key,), "an unknown variable", where, nearest(key, names))


def _owner(key: str) -> str:
    prefix, separator, _ = key.partition("_")
    return prefix if separator and prefix in ("aerie", *LAYERS) else ""


@cache
def _model() -> type[Own]:
    """`Own`, and every field of a lock's layers as a variable with the lock's own type."""
    fields: dict[str, Any] = {}
    for layer in LAYERS:
        table = Lock.model_fields[layer].annotation if layer in Lock.model_fields else None
        if isinstance(table, type) and issubclass(table, BaseModel):
            for name, info in table.model_fields.items():
                kind = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
                fields[f"{layer}_{name}"] = (kind, None)
    return create_model("Variables", __base__=Own, **fields)


def _resolved(inventory: Inventory, raw: Mapping[str, Any], key: str, value: Any, document: Document) -> Any:
    """The value with its templates filled in, where it is aerie's to read."""
    from ansible.errors import AnsibleError
    from ansible.template import Templar

    if not (_owner(key) or key in CONNECTION or key.startswith("ansible_ssh_")):
        return value
    try:
        with quiet():
            return Templar(loader=inventory.loader, variables=dict(raw)).template(value)
    except AnsibleError as error:
        document.problem((key,), str(error.message), "a template that can be filled in from the inventory alone")
        raise _NotFilledIn from error


def _is_vaulted(value: object) -> bool:
    from ansible.parsing.vault import EncryptedString

    return isinstance(value, EncryptedString)


def _plain(value: Any, path: Keys, document: Document) -> Any:
    """The value without Ansible's tags, which are kept as places. A date becomes ISO text."""
    if where := origin(value):
        document.places.setdefault(path, where)
    if isinstance(value, Mapping):
        for key in value:
            if where := origin(key):
                document.places[(*path, str(key))] = where
        return {
            str(key): _plain(inner, (*path, str(key)), document)
            for key, inner in value.items()
            if not _is_vaulted(inner)
        }
    if isinstance(value, list | tuple):
        return [_plain(inner, (*path, index), document) for index, inner in enumerate(value)]
    if isinstance(value, date):
        return value.isoformat()
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return str.__str__(value) if isinstance(value, str) else value


def _host(inventory: Inventory, name: str, variables: Mapping[str, Any], own: Own) -> Host:
    # As Ansible: localhost needs no ssh unless the inventory says so.
    connection = variables.get("ansible_connection") or ("local" if name == "localhost" else "ssh")
    user, port = variables.get("ansible_user"), variables.get("ansible_port")
    return Host(
        name=name,
        address=str(variables.get("ansible_host") or name),
        user=None if user is None else str(user),
        connection=str(connection),
        port=None if port is None else int(port),
        groups=inventory.groups(name),
        variables=variables,
        lock=own.aerie_lock,
        gpus=own.aerie_gpus,
        waivers=own.aerie_waivers,
    )
