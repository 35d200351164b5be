"""A lock as variables of roles, and variables of a host as its own lock."""

from collections.abc import Mapping
from typing import Any

from aerie.layers import LAYERS

from .model import Lock

__all__ = ["role_variables", "with_variables"]


def role_variables(lock: Lock) -> dict[str, Any]:
    """`<layer>_<field>` of every field of every layer's table, as plain values: {"driver_version": "590.48.01", …}."""
    tables = lock.model_dump(mode="json", by_alias=True)
    return {f"{layer}_{field}": value for layer in LAYERS for field, value in (tables.get(layer) or {}).items()}


def with_variables(lock: Lock, variables: Mapping[str, Any]) -> Lock:
    """The lock of one host: `lock` with those role variables of its inventory that are fields of the lock.

    Variables win, as group_vars and host_vars do over the lock. Others are left alone. `inventory` has checked
    their types by the lock's own model; raises pydantic's ValidationError for values that it did not check.
    """
    tables = lock.model_dump(mode="json", by_alias=True)
    for layer in LAYERS:
        table = tables.get(layer) or {}
        table.update({field: variables[f"{layer}_{field}"] for field in table if f"{layer}_{field}" in variables})
    return Lock.model_validate(tables)
