"""A lock as text that `load` reads back."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .model import Lock

__all__ = ["to_toml"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(lock: Lock, comments: Iterable[str] = ()) -> str:
    """The lock with every value written out, below these comments; what it has not (None) is left out."""
    tables = lock.model_dump(mode="json", by_alias=True)
    head = [f"# {line}" for line in comments]
    return "\n".join([*head, *_table((), tables)]).lstrip("\n") + "\n"


def _table(path: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    plain = {key: value for key, value in values.items() if value is not None and not isinstance(value, dict)}
    if path and plain:
        yield from ("", f"[{'.'.join(map(_key, path))}]")
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _table((*path, key), value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {', '.join(pairs)} }}"
    # A JSON string is a TOML one, but for the one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
