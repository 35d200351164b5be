"""What a compiling unit takes, from units.toml: by package, version, CUDA and architecture."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from aerie.choice import unknown_name
from aerie.errors import UsageError

__all__ = ["UnitMemory", "unit_memory", "units"]

_TABLE = Path(__file__).with_name("units.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMemory:
    """One row. bytes_per_thread: the most that one file takes for each nvcc thread that works on it.

    versions, cuda: as in requirements, "" is any; architectures: compute capabilities such as "12.0", none is any.
    units: files to compile, 0 where nobody counted them; source: the measurement, or whose estimate it is.
    cpu_s: processor time of one file, seconds, on average; 0 where nobody measured it.
    """

    package: str
    versions: str
    cuda: str
    architectures: tuple[str, ...]
    units: int
    bytes_per_thread: int
    basis: Literal["measured", "estimate"]
    source: str
    cpu_s: float = 0.0


@cache
def units() -> tuple[UnitMemory, ...]:
    """Every row, in the table's order."""
    rows = tomllib.loads(_TABLE.read_text())["unit"]
    return tuple(UnitMemory(**row | {"architectures": tuple(row["architectures"])}) for row in rows)


def unit_memory(package: str, *, version: str, cuda: str, architectures: Sequence[str]) -> UnitMemory:
    """The row that counts for building this version with nvcc of this CUDA ("13.1") for these architectures ("12.0").

    Raises UsageError for a package that the table does not have, and for what is no version.
    """
    name = canonicalize_name(package)
    rows = [row for row in units() if row.package == name]
    if not rows:
        raise unknown_name("the extension to build", package, dict.fromkeys(row.package for row in units()))
    _check("version", version)
    _check("CUDA", cuda)
    # Every package ends with a row for all of its versions: a test holds that.
    return next(row for row in rows if _fits(row, version, cuda, architectures))


def _fits(row: UnitMemory, version: str, cuda: str, architectures: Sequence[str]) -> bool:
    return (
        SpecifierSet(row.versions).contains(version, prereleases=True)
        and SpecifierSet(row.cuda).contains(cuda, prereleases=True)
        and (not row.architectures or set(architectures) <= set(row.architectures))
    )


def _check(what: str, text: str) -> None:
    try:
        Version(text)
    except InvalidVersion as error:
        raise UsageError(what, seen=text, expected="a version", remedy="Write it as a package index does.") from error
