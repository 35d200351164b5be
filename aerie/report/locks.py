"""Locks and their differences as what rich draws. Values in, renderables out."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aerie.lock import Lock
from aerie.lock.difference import changes

__all__ = ["diff_view", "lock_view"]


def lock_view(lock: Lock, host: str | None = None) -> RenderableType:
    """Every value of the lock, a row each; host: the one whose variables were put in."""
    tables = lock.model_dump(mode="json", by_alias=True)
    whose = f" as the inventory has it for {host}" if host else ""
    head = Text(f"lock {lock.name}{whose}: {', '.join(lock.systems)} on {lock.arch}", style="bold")
    table = _table("layer", "key", "value")
    for layer, values in tables.items():
        if isinstance(values, dict):
            for position, (key, value) in enumerate(_rows(values)):
                table.add_row(layer if position == 0 else "", key, value)
    return Group(head, table)


def diff_view(before: Lock, after: Lock) -> RenderableType:
    """Every value that differs, a row each."""
    rows = changes(before, after)
    if not rows:
        return Text(f"{before.name} and {after.name} say the same")
    table = _table("key", before.name, after.name)
    for row in rows:
        table.add_row(row.key, _word(row.before), _word(row.after))
    return Group(table, Text(f"{len(rows)} values differ", style="bold"))


def _rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", _word(inner)) for name, inner in value.items()]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            rows += [(key if index == 0 else "", _word(item)) for index, item in enumerate(value)]
        else:
            rows.append((key, _word(value)))
    return rows


def _word(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(_word(item) for item in value.values())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) or '""'


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="dim", padding=(0, 1), collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
