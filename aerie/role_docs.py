"""roles/<role>/README.md, made from the role's argument_specs, defaults and verify tasks."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .layers import LAYERS
from .paths import repository

__all__ = ["roles", "text"]

PAGE = """\
<!-- Written by ./invoke docs from this role's argument_specs, defaults and verify tasks. -->
# {role}
{purpose}.

{description}

## Variables
From the host's lock; a value in host_vars or group_vars wins over it, and a default holds where neither has one.

| variable | type | default | meaning |
|---|---|---|---|
{rows}

## Use
`./invoke provision --host gpu01` applies the role where the host differs from its lock. By hand:

    - hosts: gpu01
      become: true
      gather_facts: true
      roles: [{role}]

With `tasks_from: verify` it only looks. It never reboots: why one is needed is added to `aerie_reboot_reasons`.

## What verify proves
{proofs}
"""


def roles(root: Path | None = None) -> tuple[str, ...]:
    """Names of the roles that have argument_specs, in the order of their layers."""
    found = {path.parent.parent.name for path in _folder(root).glob("*/meta/argument_specs.yml")}
    return (*(layer for layer in LAYERS if layer in found), *sorted(found.difference(LAYERS)))


def text(role: str, root: Path | None = None) -> str:
    """The README of a role as it ought to be. Raises OSError when one of its files is not there."""
    folder = _folder(root) / role
    main = _yaml(folder / "meta/argument_specs.yml")["argument_specs"]["main"]
    defaults = _yaml(folder / "defaults/main.yml") or {}
    return PAGE.format(
        role=role,
        purpose=_markdown(main["short_description"]),
        description="\n\n".join(_markdown(part) for part in _list(main["description"])),
        rows="\n".join(_rows(main["options"], defaults)),
        proofs="\n".join(f"- {name}" for file in _verify_files(folder) for name in _proofs(_yaml(file))),
    )


def _folder(root: Path | None) -> Path:
    return (root or repository()) / "roles"


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _rows(options: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, option in options.items():
        kind = option["type"]
        words = f"{kind} of {option['elements']}" if "elements" in option else kind
        meaning = " ".join(_markdown(part) for part in _list(option["description"]))
        if choices := option.get("choices"):
            meaning += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        yield f"| `{prefix}{name}` | {words} | {_default(name, option, defaults, is_inner=bool(prefix))} | {meaning} |"
        inner = f"{prefix}{name}{'[]' if kind == 'list' else ''}."
        yield from _rows(option.get("options", {}), {}, inner)


def _default(name: str, option: Mapping[str, Any], defaults: Mapping[str, Any], *, is_inner: bool) -> str:
    if name in defaults:
        return f"`{json.dumps(defaults[name], ensure_ascii=False)}`"
    if is_inner:
        return "" if option.get("required") else "may be left out"
    return "none: the lock must say"


def _verify_files(folder: Path) -> list[Path]:
    """verify.yml first, then those that it takes in by this name."""
    return sorted((folder / "tasks").glob("verify*.yml"), key=lambda path: (path.stem != "verify", path.stem))


def _proofs(tasks: list[dict[str, Any]]) -> Iterator[str]:
    """Names of the assertions among these tasks and their blocks, in order."""
    for task in tasks:
        if "ansible.builtin.assert" in task:
            yield str(task["name"])
        for part in ("block", "rescue", "always"):
            yield from _proofs(task.get(part, []))


def _list(words: str | list[str]) -> list[str]:
    return words if isinstance(words, list) else [words]


def _markdown(words: str) -> str:
    """Ansible's C(…) and V(…) as code; | would end a table's cell."""
    return re.sub(r"\b[CV]\(([^)]*)\)", r"`\1`", " ".join(words.split())).replace("|", "\\|")
