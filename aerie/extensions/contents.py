"""What a wheel or an installed package really holds: device code by library, and the torch that it asks for.

Standard library only: it runs on hosts as on the controller. A reading is kept with its wheel, so that a large one is
read once.
"""

import fnmatch
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aerie.errors import AerieError
from aerie.extensions.coverage import Coverage, covers
from aerie.extensions.device_code import Entry, Library, read

__all__ = [
    "Contents",
    "Group",
    "against",
    "coverage",
    "is_unused",
    "is_version",
    "of_folder",
    "of_wheel",
    "parse",
    "sm",
]

_KINDS: Mapping[str, Literal["sass", "ptx"]] = {"sass": "sass", "ptx": "ptx"}
_TORCH = re.compile(r"^Requires-Dist:\s*torch\s*\(?\s*([<>=!~][^;)\s]*)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """So many translation units of a library hold code of these kinds: "sass sm_120a", "ptx sm_90"."""

    units: int
    code: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """libraries: by path in the wheel, those with device code only; torch: the requirement, "==2.14.1", "" for none."""

    libraries: Mapping[str, tuple[Group, ...]]
    torch: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As receipts have it; parse gives the same."""
        rows = {name: [[one.units, *one.code] for one in groups] for name, groups in self.libraries.items()}
        return {"libraries": rows, "torch": self.torch}

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every kind of code in it, "sass sm_120a", sorted."""
        return tuple(sorted({code for groups in self.libraries.values() for one in groups for code in one.code}))


def parse(document: Mapping[str, Any]) -> Contents:
    """What to_dict gave. Raises ValueError, KeyError or TypeError for what it did not give."""
    libraries = {
        str(name): tuple(Group(units=int(units), code=tuple(map(str, code))) for units, *code in rows)
        for name, rows in document["libraries"].items()
    }
    return Contents(libraries=libraries, torch=str(document["torch"]))


def of_wheel(path: Path) -> Contents:
    """Read a wheel; nothing of it is unpacked. Raises AerieError where it is damaged."""
    with open(path, "rb") as file:
        found = read(file, path.name)
        try:
            with zipfile.ZipFile(file) as wheel:
                name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
                metadata = wheel.read(name).decode(errors="replace")
        except (zipfile.BadZipFile, StopIteration, OSError) as error:
            raise AerieError(
                path.name, seen=str(error) or "no METADATA", expected="a wheel", remedy="Get the wheel again."
            ) from error
    asked = _TORCH.search(metadata.partition("\n\n")[0])
    return Contents(libraries=_grouped(found), torch=asked[1] if asked else "")


def of_folder(folder: Path, names: Iterable[str]) -> dict[str, tuple[Group, ...]]:
    """Read these installed libraries, by their paths in the folder; those without device code are left out."""
    found: list[Library] = []
    for name in names:
        with open(folder / name, "rb") as file:
            found += [Library(name=name, entries=one.entries) for one in read(file, name)]
    return _grouped(found)


def coverage(groups: Sequence[Group], capability: str) -> Coverage:
    """What a library holds for a GPU of this compute capability, "12.0"."""
    return covers(_entries(groups), sm(capability))


def sm(capability: str) -> str:
    """ "sm_120" of "12.0"."""
    return f"sm_{capability.replace('.', '')}"


def against(contents: Contents, capabilities: Sequence[str], unused: Sequence[str] = ()) -> tuple[str, ...]:
    """What speaks against serving with it on GPUs of these compute capabilities, one sentence each; () is good.

    unused: patterns of libraries that need no code for them.
    """
    if not contents.libraries:
        return ("no library in it holds device code",)
    asked = {name: groups for name, groups in contents.libraries.items() if not is_unused(name, unused)}
    if not asked:
        return ("every library in it is one that these GPUs do not use",)
    return tuple(words for name, groups in asked.items() for one in capabilities if (words := _lack(name, groups, one)))


def is_unused(name: str, patterns: Sequence[str]) -> bool:
    """Is the library one of those that the lock says are not used?"""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_version(seen: str, wanted: str) -> bool:
    """Is 2.8.3+cu13torch2.14 the version 2.8.3? A lock that names the local part means just that."""
    return seen == wanted or ("+" not in wanted and seen.partition("+")[0] == wanted)


def _lack(name: str, groups: Sequence[Group], capability: str) -> str:
    found = coverage(groups, capability)
    held = ", ".join(sorted({code for one in groups for code in one.code}))
    if found.state == "ptx":
        return f"{name} has only PTX for {sm(capability)}, which the driver would have to compile: {held}"
    return "" if found.state == "sass" else f"{name} has no code for {sm(capability)}: {held}"


def _grouped(libraries: Iterable[Library]) -> dict[str, tuple[Group, ...]]:
    return {one.name: tuple(_groups(one.entries)) for one in libraries if one.entries}


def _groups(entries: Sequence[Entry]) -> Iterator[Group]:
    # Input of the device linker counts only where nothing was linked, as in `covers`.
    judged = [entry for entry in entries if not entry.is_relocatable] or entries
    by_unit: dict[int, set[str]] = {}
    for entry in judged:
        by_unit.setdefault(entry.unit, set()).add(f"{entry.kind} {entry.arch}")
    counted = Counter(tuple(sorted(code)) for code in by_unit.values())
    for code, units in sorted(counted.items()):
        yield Group(units=units, code=code)


def _entries(groups: Sequence[Group]) -> Iterator[Entry]:
    first = 0
    for group in groups:
        for unit in range(first, first + group.units):
            for one in group.code:
                kind, arch = one.split()
                yield Entry(kind=_KINDS.get(kind, "other"), arch=arch, size_bytes=0, unit=unit)
        first += group.units
