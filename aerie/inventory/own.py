"""The one thing that aerie writes into an inventory: which lock a host has after an upgrade."""

from pathlib import Path

from aerie.errors import AerieError, UsageError
from aerie.paths import shown
from aerie.runbook.step import write_atomic

from .source import open_inventory, origin

__all__ = ["lock_file", "record_lock"]

HEAD = (
    "# Written by aerie after an upgrade or a rollback. It wins over the group's lock; remove it to go back to that.\n"
)


def lock_file(name: str, path: Path | None = None) -> Path:
    """host_vars/<name>/lock.yml beside the inventory, where `record_lock` writes the lock of the host.

    Raises UsageError where a variable in that file would have no effect, or would hide another file.
    """
    inventory = open_inventory(path)
    folder = inventory.folder / "host_vars" / name
    file = folder / "lock.yml"
    for sibling in (folder.with_name(f"{name}{suffix}") for suffix in ("", ".yml", ".yaml", ".json")):
        if sibling.is_file():
            raise UsageError(
                shown(sibling),
                seen="a file",
                expected=f"a folder, so that {shown(file)} can stand beside the host's own variables",
                remedy=f"Move it to {shown(folder / 'main.yml')}.",
            )
    where = next((origin(key) for key in inventory.variables(name) if key == "aerie_lock"), None)
    if where and where.startswith(shown(folder) + "/") and not where.startswith(shown(file) + ":"):
        raise UsageError(
            where,
            seen="aerie_lock",
            expected=f"it in {shown(file)}, which aerie writes and which loses to this place",
            remedy="Remove it here.",
        )
    return file


def record_lock(name: str, lock: str, path: Path | None = None) -> Path:
    """Make `lock` the lock of the host in the inventory; returns the file that says so. Raises as `lock_file`."""
    import yaml  # here: most starts read an inventory and write none

    file = lock_file(name, path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, (HEAD + yaml.safe_dump({"aerie_lock": lock})).encode())
    except OSError as error:
        remedy = f"Set aerie_lock: {lock} for {name} by hand."
        raise AerieError(shown(file), seen=str(error), expected="a file that can be written", remedy=remedy) from error
    return file
