"""docs/lock.md: what a lock and the variables of hosts may hold, made from the models themselves."""

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .fieldtexts import field_texts
from .inventory import Gpus, Waiver
from .inventory.variables import Own
from .layers import LAYERS
from .lock.files import names
from .lock.model import Lock

__all__ = ["text"]

HEAD = """\
# Locks

<!-- Made by ./invoke docs from aerie/lock/model.py and aerie/inventory/host.py; edit those. -->

A lock says what a host must be. It is one TOML file, `inventory/locks/<name>.lock.toml`, and names no host: the
inventory gives a host its lock by the variable `aerie_lock`. A lock in `locks/` beside an inventory of your own goes
before a shipped one of the same name. Shipped: {names}.

    ./invoke lock.show ubuntu2404-cuda131                 every value
    ./invoke lock.show ubuntu2404-cuda131 --host gpu01    with what the inventory says differently for gpu01
    ./invoke lock.diff ubuntu2404-cuda131 ubuntu2404-cuda131-r595
    ./invoke lock.capture --host gpu01 --name mine        a new lock from a host that works
    ./invoke weights.manifest --model kimi-k2.5           the manifest of a model, and the lines for the lock

Every field of a layer is also the variable `<layer>_<field>` of the layer's role. Set in `group_vars` or `host_vars` it
wins over the lock for those hosts: `storage_path: /data/aerie`. Unknown keys, wrong types and values that contradict
each other are errors with file, line and key, all at once. Where a shipped value comes from is said beside it.
"""
VARIABLES = """\
## Variables of hosts

In the inventory's `group_vars/` and `host_vars/`, besides those above. Variables with other prefixes are left alone.
"""
WORDS: dict[Any, str] = {str: "text", int: "integer", bool: "true or false"}


def text() -> str:
    """The whole page."""
    parts = [HEAD.format(names=", ".join(f"`{name}`" for name in names())), *_section("The file", Lock, Lock.__doc__)]
    for layer in LAYERS:
        if layer in Lock.model_fields:
            model = _models(Lock.model_fields[layer])[0]
            parts += _section(f"[{layer}]", model, model.__doc__)
    parts += [VARIABLES, *_table(Own)]
    for variable, model in (("aerie_gpus", Gpus), ("aerie_waivers[]", Waiver)):
        parts += _section(f"{variable}", model, model.__doc__, level=3)
    return "\n".join(parts)


def _section(title: str, model: type[BaseModel], doc: str | None, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    yield f"{(doc or '').strip()}\n"
    yield from _table(model)
    if model is not Lock:
        for name, info in model.model_fields.items():
            for inner in _models(info):
                yield from _section(f"{title.strip('[]')}.{name}", inner, inner.__doc__, level + 1)


def _table(model: type[BaseModel]) -> Iterator[str]:
    texts = field_texts(model)
    rows = [
        f"| `{info.alias or name}` | {_words(info.annotation)} | {_default(info)} | {_cell(texts[name])} |"
        for name, info in model.model_fields.items()
        if name in texts
    ]
    yield "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value in ((), {}, "", None) or isinstance(value, BaseModel):
        return ""
    return (
        f"`{', '.join(value) if isinstance(value, tuple) else str(value).lower() if value in (True, False) else value}`"
    )


def _words(kind: Any) -> str:
    if kind in WORDS:
        return WORDS[kind]
    origin, arguments = typing.get_origin(kind), [one for one in typing.get_args(kind) if one not in (..., type(None))]
    if origin is typing.Annotated:
        return _words(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"table of {_words(arguments[0])} to {_words(arguments[1])}"
    if origin is types.UnionType:
        return _words(arguments[0])
    return "table" if isinstance(kind, type) and issubclass(kind, BaseModel) else str(getattr(kind, "__name__", kind))


def _models(annotated: Any) -> list[type[BaseModel]]:
    """The models inside of a field's type."""
    kind = annotated.annotation if isinstance(annotated, FieldInfo) else annotated
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for argument in typing.get_args(kind) for model in _models(argument)]
