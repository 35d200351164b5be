"""What differs between two locks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .model import Lock

__all__ = ["SCHEMA", "Change", "changes", "to_dict"]

SCHEMA = "aerie.lock-diff/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value. key: "driver.version", "cuda.packages[cuda-nvcc-13-1].version"; None: that lock has no such value."""

    key: str
    before: Any
    after: Any


def changes(before: Lock, after: Lock) -> tuple[Change, ...]:
    """Every value that differs, in the order of the locks; rows of packages and environments go by their names."""
    old, new = (dict(_flat("", lock.model_dump(mode="json", by_alias=True))) for lock in (before, after))
    keys = list(dict.fromkeys([*old, *new]))
    found = (Change(key=key, before=old.get(key), after=new.get(key)) for key in keys if key != "name")
    return tuple(change for change in found if change.before != change.after)


def to_dict(before: Lock, after: Lock) -> dict[str, Any]:
    """The document of `lock.diff --json`."""
    rows = [{"key": one.key, "before": one.before, "after": one.after} for one in changes(before, after)]
    return {"schema": SCHEMA, "before": before.name, "after": after.name, "changes": rows}


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}".removeprefix("."), inner)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for item in value:
            rest = {name: inner for name, inner in item.items() if name != "name"}
            yield from _flat(f"{key}[{item['name']}]", rest)
    else:
        yield key, value
