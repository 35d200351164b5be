"""The hosts that failed in the last run: what `--host @failed` means."""

import json
from collections.abc import Iterable
from pathlib import Path

from aerie.paths import state_dir
from aerie.runbook.step import write_atomic

__all__ = ["failed", "record_failed"]


def record_failed(names: Iterable[str]) -> None:
    """Make these the hosts that failed in the last run; none of them when it went well."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(sorted(set(names))).encode())


def failed() -> tuple[str, ...]:
    """Their names, sorted; none where nothing was recorded yet."""
    try:
        names = json.loads(_file().read_text())
    except (FileNotFoundError, ValueError):
        return ()
    return tuple(str(name) for name in names)


def _file() -> Path:
    return state_dir() / "hosts" / "failed.json"
