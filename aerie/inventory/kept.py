"""Hosts as Ansible read them last time: Ansible, half a second, is not asked again before a file of theirs changes.

Kept are inventories of one YAML file without templates, vaulted values and passwords: what such a file means follows
from its text, that of group_vars/ and host_vars/, Ansible's settings and aerie's code, whose hash is the key. All else
is read by Ansible every time, and so is a pattern that is more than names of hosts and groups.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.paths import cache_dir, repository
from aerie.runbook.step import write_atomic

from .host import Gpus, Host, Waiver

__all__ = ["KeptInventory", "NotKept", "keep", "kept"]

SECTIONS = ("group_vars", "host_vars")
# What of these stands anywhere makes the meaning depend on more than the text, or is nobody's to copy.
LIVING = re.compile(
    r"\{\{|\{%|!vault|!unsafe|^plugin:|^[^#\n]*(pass(word|wd|phrase)?|secret|token)[\w-]*:",
    re.IGNORECASE | re.MULTILINE,
)
SPANS = re.compile(r"\[\d+:\d+\]")


class NotKept(Exception):
    """Only Ansible itself can answer this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInventory:
    """hosts: by name, those that were read; members: of every group. path: of the inventory."""

    path: Path
    all_names: tuple[str, ...]
    members: Mapping[str, tuple[str, ...]]
    hosts: Mapping[str, Host]

    def names(self) -> list[str]:
        """All hosts, in the inventory's order."""
        return list(self.all_names)

    def group_names(self) -> list[str]:
        """All groups."""
        return list(self.members)

    def terms(self, pattern: str) -> list[str]:
        """The terms of a pattern. Raises NotKept where it may hold an IPv6 address."""
        if "," in pattern:
            return [term.strip() for term in pattern.split(",") if term.strip()]
        if ":" in SPANS.sub("", pattern):
            raise NotKept
        return [pattern]

    def matching(self, term: str) -> set[str]:
        """The hosts that a host's or a group's name means. Raises NotKept for any other term."""
        if term not in self.members and term not in self.all_names:
            raise NotKept
        return {*self.members.get(term, ()), *({term} & {*self.all_names})}

    def read(self, names: Iterable[str]) -> tuple[Host, ...]:
        """The hosts of these names. Raises NotKept for one that was not read yet."""
        try:
            return tuple(self.hosts[name] for name in names)
        except KeyError as error:
            raise NotKept from error


def kept(source: Path) -> KeptInventory | None:
    """What `keep` kept of this inventory and still holds."""
    try:
        document = json.loads(_file(source).read_bytes())
        if document["key"] != _key(source):
            return None
        hosts = {name: _host(fields) for name, fields in document["hosts"].items()}
        members = {name: tuple(of_group) for name, of_group in document["members"].items()}
        return KeptInventory(path=source, all_names=tuple(document["names"]), members=members, hosts=hosts)
    except (OSError, ValueError, KeyError, TypeError):  # not there, or of another version
        return None


def keep(source: Path, names: list[str], members: Mapping[str, list[str]], hosts: Iterable[Host]) -> None:
    """Let `kept` know these hosts, beside those that it knows; does nothing where it may not."""
    files = list(_files(source))
    if source.suffix not in (".yml", ".yaml") or not source.is_file():
        return
    try:
        if any(LIVING.search(file.read_text()) for file in files):
            return
        before = kept(source)
        known = {**(before.hosts if before else {}), **{host.name: host for host in hosts}}
        document = {
            "key": _key(source),
            "names": names,
            "members": members,
            "hosts": {name: _fields(host) for name, host in known.items()},
        }
        file = _file(source)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, json.dumps(document).encode(), durable=False)
    except (OSError, ValueError, TypeError):  # no home to keep it in, or a value that JSON does not have
        return


def _file(source: Path) -> Path:
    return cache_dir() / "inventory" / f"{hashlib.sha256(str(source).encode()).hexdigest()[:16]}.json"


def _files(source: Path) -> Iterator[Path]:
    """Everything that Ansible reads for this inventory, in order."""
    yield source
    for folder in (source.parent, repository() / "playbooks"):
        for section in SECTIONS:
            yield from sorted(file for file in (folder / section).rglob("*") if file.is_file())


def _key(source: Path) -> str:
    """The hash of all that decides what the inventory means."""
    root = repository()
    found = hashlib.sha256(sys.version.encode())
    settings = [root / "ansible.cfg", root / "requirements" / "controller.txt"]
    for file in (*_files(source), *settings):
        found.update(f"\0{file}\0".encode() + file.read_bytes())
    code = (root / "aerie").glob("inventory/*.py"), (root / "aerie").glob("lock/*.py"), root.glob("roles/*/meta/*.yml")
    others = root / "aerie" / "layers.py", root / "aerie" / "findings" / "catalogue.toml"
    for file in sorted((*(file for files in code for file in files), *others)):
        stat = file.stat()
        found.update(f"\0{file} {stat.st_mtime_ns} {stat.st_size}".encode())
    variables = sorted(item for item in os.environ.items() if item[0].startswith("ANSIBLE_"))
    found.update(json.dumps(variables).encode())
    return found.hexdigest()


def _fields(host: Host) -> dict[str, Any]:
    plain = {name: getattr(host, name) for name in ("name", "address", "user", "connection", "port", "groups", "lock")}
    waivers = [waiver.model_dump(mode="json") for waiver in host.waivers]
    return {**plain, "variables": host.variables, "gpus": host.gpus.model_dump(mode="json"), "waivers": waivers}


def _host(fields: dict[str, Any]) -> Host:
    return Host(
        **{
            **fields,
            "groups": tuple(fields["groups"]),
            "gpus": Gpus.model_validate(fields["gpus"]),
            "waivers": tuple(Waiver.model_validate(one) for one in fields["waivers"]),
        }
    )
