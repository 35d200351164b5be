"""An inventory opened by Ansible itself, so that files, groups, variables and their precedence are Ansible's.

Ansible is imported when an inventory is opened: that takes half a second. It warns on stderr and goes on where a
file is wrong; here such a file is an error, with its line.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.choice import nearest
from aerie.errors import UsageError
from aerie.paths import repository, shown
from aerie.runbook.yamlfile import Problem, SpecError, dotted

__all__ = ["Inventory", "absolute", "open_inventory", "origin", "quiet"]

SECTIONS = ("children", "hosts", "vars")
YAML = (".yml", ".yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What Ansible made of the inventory at `path`."""

    path: Path
    loader: Any
    manager: Any
    variables_manager: Any

    @property
    def folder(self) -> Path:
        """Where group_vars/, host_vars/ and locks/ are."""
        return self.path if self.path.is_dir() else self.path.parent

    def names(self) -> list[str]:
        """All hosts, in the inventory's order."""
        return [str.__str__(host.name) for host in self.manager.list_hosts("all")]  # Ansible's own kind of str

    def group_names(self) -> list[str]:
        """All groups."""
        return [str.__str__(name) for name in self.manager.groups]

    def members(self, group: str) -> list[str]:
        """The hosts of a group and of the groups in it."""
        return [str.__str__(host.name) for host in self.manager.groups[group].get_hosts()]

    def terms(self, pattern: str) -> list[str]:
        """The terms of a pattern, as Ansible takes it apart."""
        from ansible.inventory.manager import split_host_pattern

        return [str(term) for term in split_host_pattern(pattern)]

    def matching(self, term: str) -> set[str]:
        """The hosts that a term of Ansible's patterns means; "localhost" is one that no inventory needs to name."""
        with quiet():
            return {host.name for host in self.manager.list_hosts(term)}

    def groups(self, name: str) -> tuple[str, ...]:
        """The groups that the host is in, "all" and "ungrouped" aside."""
        groups = self.manager.get_host(name).get_groups()
        return tuple(sorted({str.__str__(group.name) for group in groups} - {"all", "ungrouped"}))

    def variables(self, name: str) -> dict[str, Any]:
        """The host's variables as Ansible holds them: not templated, each with its origin; without magic ones."""
        from ansible.errors import AnsibleError

        host = self.manager.get_host(name)
        try:
            with quiet():
                found = self.variables_manager.get_vars(host=host, include_hostvars=False)
                magic = {*self.variables_manager.get_vars(), *host.get_magic_vars()}
        except AnsibleError as error:
            raise _refused(error, self.path) from error
        magic |= {"ansible_facts", "ansible_local", "inventory_dir", "inventory_file"}
        return {key: value for key, value in found.items() if key not in magic}


def open_inventory(path: Path | None = None) -> Inventory:
    """Read the inventory at `path`, a file or a folder; inventory/hosts.yml of the checkout unless given.

    Raises UsageError or SpecError with the line where it is no inventory.
    """
    source = absolute(path)
    if not source.exists():
        raise UsageError(shown(source), seen="no such file", expected="an Ansible inventory", remedy="Name another.")
    with quiet() as said:
        from ansible.errors import AnsibleError  # its first import reads Ansible's configuration

        try:
            return _open(source, said)
        except AnsibleError as error:
            raise _refused(error, source) from error


def absolute(path: Path | None) -> Path:
    """The inventory's path; inventory/hosts.yml of the checkout unless given."""
    return (path or repository() / "inventory" / "hosts.yml").absolute()


def origin(value: object) -> str | None:
    """ "inventory/hosts.yml:12", where Ansible read this key or value; None where it does not say."""
    # The tags are what Ansible's own messages use. They are internal to ansible-core, which is pinned to 2.19.
    from ansible._internal._datatag._tags import Origin

    tag = value if isinstance(value, Origin) else Origin.get_tag(value)
    if tag is None or tag.path is None:
        return None
    return f"{shown(Path(tag.path))}:{tag.line_num or 1}"


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Ansible's warnings go into the text given instead of to stderr; it is set up as aerie's plays are.

    A key that stands twice is an error, and an ansible.cfg of the folder that the operator is in does not count.
    """
    settings = {
        "ANSIBLE_CONFIG": str(repository() / "ansible.cfg"),
        "ANSIBLE_DUPLICATE_YAML_DICT_KEY": "error",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            yield said
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _open(source: Path, said: io.StringIO) -> Inventory:
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.vars.manager import VariableManager

    _forget()
    loader = DataLoader()
    loader.set_basedir(str(repository() / "playbooks"))  # not the folder that the operator happens to be in
    problems = list(_hidden(source if source.is_dir() else source.parent))
    problems += [
        problem for file in _yaml_files(source) for problem in _problems(file, loader.load_from_file(str(file)))
    ]
    if problems:
        raise SpecError(problems)
    manager = InventoryManager(loader=loader, sources=[str(source)])
    if not manager._inventory.processed_sources:
        seen = said.getvalue().strip() or "nothing that an inventory plugin reads"
        raise UsageError(shown(source), seen=seen, expected="an Ansible inventory", remedy="Correct the file.")
    variables = VariableManager(loader=loader, inventory=manager)
    return Inventory(path=source, loader=loader, manager=manager, variables_manager=variables)


def _forget() -> None:
    # Ansible keeps for the life of a process which files of variables there were; aerie writes one of them itself.
    from ansible.plugins.vars import host_group_vars

    host_group_vars.FOUND.clear()
    host_group_vars.NAK.clear()


def _hidden(folder: Path) -> Iterator[Problem]:
    """Files of variables that Ansible passes over without a word: where a folder has the name, the file is not read."""
    for section in ("group_vars", "host_vars"):
        for entry in sorted((folder / section).glob("*/")):
            for file in (entry.with_name(f"{entry.name}{suffix}") for suffix in (*YAML, ".json")):
                if file.is_file():
                    seen, remedy = "a file beside a folder of that name", f"Move it to {shown(entry / 'main.yml')}."
                    expected = "one of them: Ansible reads the folder only"
                    yield Problem(where=f"{shown(file)}:1", key="document", seen=seen, expected=expected, remedy=remedy)


def _yaml_files(source: Path) -> list[Path]:
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    return [file for file in files if file.suffix in YAML and file.is_file()]


def _problems(file: Path, document: object) -> Iterator[Problem]:
    """What Ansible would skip with a warning, or refuse without the line."""
    if not isinstance(document, Mapping):
        yield _problem(f"{shown(file)}:1", (), document, "a mapping of groups")
    elif "plugin" not in document:
        for group, body in document.items():
            yield from _group_problems((group,), body, origin(group) or shown(file))


def _group_problems(path: tuple[Any, ...], body: object, where: str) -> Iterator[Problem]:
    if body is None:
        return
    if not isinstance(body, Mapping):
        yield _problem(where, path, body, f"a mapping with {', '.join(SECTIONS)}")
        return
    for key, value in body.items():
        here, inner = origin(key) or where, (*path, key)
        if key not in SECTIONS:
            hint = nearest(str(key), SECTIONS)
            yield Problem(
                where=here,
                key=dotted(inner),
                seen="an unknown key",
                expected="one of children, hosts, vars",
                remedy=hint,
            )
        elif isinstance(value, Mapping):
            if key != "vars":
                yield from _member_problems(key, inner, value, here)
        elif value is not None and not (isinstance(value, str) and key != "vars"):
            yield _problem(here, inner, value, "a mapping")


def _member_problems(section: str, path: tuple[Any, ...], members: Mapping[Any, Any], where: str) -> Iterator[Problem]:
    for name, body in members.items():
        here = origin(name) or where
        if section == "children":
            yield from _group_problems((*path, name), body, here)
        elif body is not None and not isinstance(body, Mapping):
            yield _problem(here, (*path, name), body, "a mapping of variables")


def _problem(where: str, path: tuple[Any, ...], value: object, expected: str) -> Problem:
    kind = next((base.__name__ for base in (Mapping, list, str) if isinstance(value, base)), type(value).__name__)
    return Problem(where=where, key=dotted(path), seen="nothing" if value is None else f"a {kind}", expected=expected)


def _refused(error: BaseException, source: Path) -> UsageError:
    """Ansible's own refusal of a file, with the line that the error or one of its causes names."""
    text, where = str(getattr(error, "message", "") or error).strip(), None
    cause: BaseException | None = error
    while cause is not None and where is None:
        where = origin(getattr(cause, "obj", None))
        cause = cause.__cause__ or cause.__context__
    return UsageError(where or shown(source), seen=text, expected="an Ansible inventory", remedy="Correct the file.")
