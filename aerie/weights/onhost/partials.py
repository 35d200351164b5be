"""Partial files that other tools, or stagings of another manifest, left behind: listed always, removed when told."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerie.weights.onhost.target import Target

__all__ = ["Partial", "find", "sweep"]

_TOOLS: Final = {".incomplete": "huggingface_hub", ".aria2": "aria2", ".partial": "rclone", ".part": "curl or wget"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """One file that nobody can use. bytes: on the disk; is_open: a process still holds it, so it is left alone."""

    path: Path
    tool: str
    bytes: int
    is_open: bool


def find(target: Target) -> tuple[Partial, ...]:
    """The partial files beside the target and in the hub client's cache, sorted by path."""
    folders = [target.path.parent, Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")]
    found = dict(pair for folder in folders for pair in _below(folder, target))
    opened = _opened() if found else frozenset()
    partials = []
    for path, tool in sorted(found.items()):
        with suppress(OSError):
            size = path.lstat().st_blocks * 512
            partials.append(Partial(path=path, tool=tool, bytes=size, is_open=os.path.realpath(path) in opened))
    return tuple(partials)


def sweep(partials: tuple[Partial, ...]) -> tuple[Partial, ...]:
    """Remove those that no process holds; what was removed."""
    removed = [one for one in partials if not one.is_open]
    for one in removed:
        one.path.unlink(missing_ok=True)
    return tuple(removed)


def _below(root: Path, target: Target) -> Iterator[tuple[Path, str]]:
    model = target.path.name.partition("@")[0]
    for folder, names, files in os.walk(root):
        here = Path(folder)
        if here == target.own:
            names.clear()  # this staging's own parts are continued
            continue
        is_own = ".aerie" in here.relative_to(root).parts
        for name in files:
            path, suffix = here / name, os.path.splitext(name)[1]
            if is_own:
                # Another model's parts wait for its next staging; those of another manifest of this one do not.
                if suffix == ".part" and here.relative_to(root).parts[0].partition("@")[0] == model:
                    yield path, "aerie, another manifest"
            elif suffix in _TOOLS:
                yield path, _TOOLS[suffix]
                data = path.with_suffix("")
                if suffix == ".aria2" and data.is_file():
                    yield data, "aria2"


def _opened() -> frozenset[str]:
    """The files that some process has open, as far as this user may see."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                for descriptor in (process / "fd").iterdir():
                    with suppress(OSError):
                        found.add(os.readlink(descriptor))
    return frozenset(found)
