"""The files that a plan would write, as rich draws them: hosts with the same change are told once."""

from rich.console import Group, RenderableType
from rich.text import Text

from aerie.file_changes import FileChanges

from .hosts import fold

__all__ = ["file_changes_view"]

STYLES = {"+": "green", "-": "red", "@": "dim"}


def file_changes_view(found: FileChanges) -> RenderableType:
    """Per file its hosts, path and diff, then the hosts of which not all is known, and a line of totals."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for change in found.changes:
        hosts.setdefault((change.path, change.diff), []).append(change.host)
    lines = []
    for (path, diff), names in hosts.items():
        lines.append(Text.assemble((fold(sorted(names)), "bold"), f"  {path}"))
        lines += [_whole(line) for line in diff.splitlines()]
    for host, error in found.errors.items():
        lines.append(Text.assemble((host, "bold"), ("  not all of its files are known", "bold red")))
        lines += [Text(f"  {line}") for line in error.splitlines()]
    total = len({(change.host, change.path) for change in found.changes})
    count = f"{total} file{'' if total == 1 else 's'} would change"
    return Group(*lines, Text(f"{count}; what programs write (an initramfs, packages) is not shown", style="bold"))


def _whole(line: str) -> Text:
    """A line of a diff, never broken: who copies one wants the file's."""
    return Text(f"  {line}", STYLES.get(line[:1], ""), no_wrap=True, overflow="ignore")
