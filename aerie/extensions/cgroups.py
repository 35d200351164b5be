"""The control groups of a process, of both versions: a host can have them side by side. Standard library only."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["Group", "groups", "lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A control group: is_unified for version 2; folder: below /sys/fs/cgroup; root: where "/" is."""

    is_unified: bool
    folder: Path
    root: Path = Path("/")

    def read(self, name: str) -> str | None:
        """What the file holds; None where this group has none of that name, or may not be looked at."""
        try:
            return (self.folder / name).read_text().strip()
        except OSError:  # a controller that is not on, a root group, or a group that has just gone
            return None

    def where(self, name: str) -> str:
        """The file, as messages name it."""
        return f"/{(self.folder / name).relative_to(self.root)}"

    def numbers(self, name: str) -> dict[str, int]:
        """A file of names and numbers, such as memory.stat; nothing where there is none."""
        pairs = (line.split() for line in (self.read(name) or "").splitlines())
        return {key: int(value) for key, value in pairs}

    @property
    def files_bytes(self) -> int:
        """Cached files of this group and those below it: it drops them when it must, so they count as free."""
        cached = self.numbers("memory.stat")
        prefix = "" if self.is_unified else "total_"
        return sum(cached.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))

    @property
    def usage(self) -> str:
        """The name of the file that says what memory the group holds."""
        return "memory.current" if self.is_unified else "memory.usage_in_bytes"


def groups(root: Path, controller: str, *, pid: int | str = "self") -> Iterator[Group]:
    """Every group that limits the process by this controller, the innermost first, of both versions."""
    own = _own(root, pid)
    for is_unified, controllers, mounted_root, mount in _mounts(root):
        if not is_unified and controller not in controllers:
            continue
        path = own.get("" if is_unified else controller)
        if path is None:
            continue
        top = root / mount.lstrip("/")
        # In a container that has the host's name for itself, the mount shows that group and what is below it only.
        # A path that leads out of the mount belongs to a group that cannot be seen: the top is what can.
        inside = PurePosixPath(path)
        below = inside.relative_to(mounted_root) if inside.is_relative_to(mounted_root) else PurePosixPath()
        parts = () if ".." in below.parts else below.parts
        for depth in range(len(parts), -1, -1):
            yield Group(is_unified=is_unified, folder=top.joinpath(*parts[:depth]), root=root)


def lines(root: Path, file: str) -> list[str]:
    """The lines of a file below the root; none where it is not there."""
    try:
        return (root / file).read_text().splitlines()
    except FileNotFoundError:
        return []


def _own(root: Path, pid: int | str) -> dict[str, str]:
    """The group of a process by controller, "" for version 2's."""
    own: dict[str, str] = {}
    for line in lines(root, f"proc/{pid}/cgroup"):
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    return own


def _mounts(root: Path) -> Iterator[tuple[bool, list[str], str, str]]:
    """(is version 2, controllers, the group that is mounted, where) of every mount of control groups."""
    for line in lines(root, "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            mounted_root, mount = before.split()[3:5]
            yield kind == "cgroup2", options.split(","), mounted_root, mount
