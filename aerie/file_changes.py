"""What applying a plan would write into files, as diffs: read by a play in check mode, which changes nothing."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import apply as plays
from . import provision
from .provision import Prepared

__all__ = ["FileChange", "FileChanges", "changes_of", "of_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file of one host. diff: unified, without its head; path: "" where the module does not name the file."""

    host: str
    path: str
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """Of every host, in the order in which they would come. errors: by host, where the play did not get to its end."""

    changes: tuple[FileChange, ...] = ()
    errors: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As `plan --diff --json` has it, below `files`."""
        return {"changes": [asdict(change) for change in self.changes], "errors": dict(self.errors)}


def of_plan(prepared: Prepared, *, forks: int = 16) -> FileChanges:
    """The files that the roles of the plan's layers would write.

    What a program writes (an initramfs), and what depends on a package that is not there yet, is not among them.
    """
    hosts = [provision.host_input(prepared, host, may_reboot=False) for host in prepared.plan.changing() if host.apply]
    if not hosts:
        return FileChanges(errors={})
    found: list[FileChange] = []

    def watch(event: Mapping[str, Any]) -> None:
        if event["event"] == "runner_on_ok":
            found.extend(changes_of(event["event_data"]))

    options: dict[str, Any] = {"inventory": prepared.inventory, "variables": {}, "forks": forks}
    played = plays.play("provision", hosts, **options, check=True, watch=watch)
    return FileChanges(changes=tuple(found), errors={one.host: one.error for one in played.hosts if one.error})


def changes_of(data: Mapping[str, Any]) -> Iterator[FileChange]:
    """The files whose content a task of a role changes, from the data of ansible-runner's event."""
    if not data.get("role"):
        return  # the receipt
    result = data.get("res") or {}
    for one in result.get("results") or [result]:  # a loop has one a turn
        diffs = one.get("diff") or []
        for diff in [diffs] if isinstance(diffs, Mapping) else diffs:
            before, after = diff.get("before"), diff.get("after")
            # Owner and mode come as mappings; only contents are shown.
            if isinstance(before, str) and isinstance(after, str) and before != after:
                lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
                path = str(one.get("dest") or one.get("path") or (one.get("invocation") or {}).get("dest") or "")
                yield FileChange(host=str(data["host"]), path=path, diff="\n".join([*lines][2:]))
