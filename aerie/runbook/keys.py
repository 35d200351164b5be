"""What a step's result depends on, as hashes: when the key is the same, the result need not be made again."""

import ast
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from aerie import pagecache
from aerie.runbook import interpreters
from aerie.runbook.spec import Step, values_of

__all__ = ["changes", "code_hash", "file_hash", "key_of", "output_of", "parts_of", "work_of"]

# What every step imports and whose edit changes no result; all else that a step imports of its own project counts.
_KEPT_BYTES = 1 << 20  # a smaller file may stay in the page cache
_PLUMBING = ("aerie.runbook", "aerie.errors", "aerie.paths")


def parts_of(step: Step, values: BaseModel) -> dict[str, Any]:
    """Everything the step's result depends on except its inputs, each part by name, as JSON types."""
    return {
        "spec": step.model_dump(mode="json", include={"id", "module", "environment", "needs", "values"}),
        "code": code_hash(step.module),
        "values": values_of(values, step.values),
        "environment": None if step.environment == "controller" else interpreters.of(values).hash(step.environment),
    }


def key_of(parts: Mapping[str, Any]) -> str:
    """The step's key: sha256 over its parts."""
    return _digest(parts)


def work_of(key: str, inputs: Mapping[str, str]) -> str:
    """One hash for a step and what it is given: attempts with the same one do the same work. inputs: output hashes."""
    return _digest({"key": key, "inputs": inputs})


def output_of(evidence_sha256: str, artifacts: Sequence[Mapping[str, Any]]) -> str:
    """What a step gave to those after it, as one hash: equal outputs are interchangeable, whenever they were made."""
    files = sorted([artifact["path"], artifact["sha256"]] for artifact in artifacts)
    return _digest({"evidence": evidence_sha256, "artifacts": files})


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of parts, in words: "values changed: finetune.epochs 2 → 3"."""
    found = []
    if before["spec"] != now["spec"]:
        found.append("step changed: " + ", ".join(_differences(before["spec"], now["spec"])))
    if before["code"] != now["code"]:
        found.append("code changed")
    if before["environment"] != now["environment"]:
        found.append("environment changed")
    if before["values"] != now["values"]:
        shared = {path for path in before["values"] if path in now["values"]}
        old, new = ({path: values[path] for path in shared} for values in (before["values"], now["values"]))
        if moved := list(_differences(old, new)):
            found.append("values changed: " + ", ".join(moved))
    return found


def code_hash(name: str) -> str:
    """sha256 over the code of module `name` and of what it imports from its own project, wherever it does so.

    Comments, layout, docstrings and the text `doc` do not count.
    """
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in found or current.startswith(_PLUMBING):
            continue
        source = _source(current)
        if source is None:
            continue
        tree = ast.parse(source.read_bytes())
        package = current if source.name == "__init__.py" else current.rpartition(".")[0]
        waiting += [other for other in _imports(tree, package) if other.split(".")[0] == name.split(".")[0]]
        found[current] = hashlib.sha256(ast.dump(_bare(tree)).encode()).hexdigest()
    return _digest(found)


def file_hash(path: Path) -> str:
    """sha256 of a file's content. What was not in the page cache before is not kept there: it may be 828 GB."""
    is_passing = path.stat().st_size >= _KEPT_BYTES and pagecache.is_cold(path)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if is_passing:
        pagecache.release(path)
    return digest


def _source(name: str) -> Path | None:
    """The file of a module, found without running it; None when `name` is no module (a function, a class)."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{above}.{base}" if base else above
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _bare(tree: ast.Module) -> ast.Module:
    """The tree without what only people read."""
    tree.body = [statement for statement in tree.body if not _is_doc(statement)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _is_doc(statement: ast.stmt) -> bool:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)] == ["doc"]


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{above}{name}.")
        elif old != new:
            yield f"{above}{name} {_show(old)} → {_show(new)}"


def _show(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
