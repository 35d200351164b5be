"""Which loader an engine should be started with, from loaders.toml: by engine, version and what fits in memory."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from aerie.weights.onhost.warm import why_not

__all__ = ["Advice", "Loader", "advice", "loaders"]

_TABLE = Path(__file__).with_name("loaders.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One row of the table. fits: for weights that the page cache can hold; flags: to add to the engine's own."""

    engine: str
    versions: str  # as in requirements: ">=0.16,<0.33"
    fits: bool
    name: str
    flags: tuple[str, ...]
    note: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """loaders: the advised one first, none where the table knows nothing for this engine; reason: in figures."""

    loaders: tuple[Loader, ...]
    reason: str


def loaders() -> tuple[Loader, ...]:
    """Every row of the table."""
    rows = tomllib.loads(_TABLE.read_text())["loader"]
    return tuple(Loader(**row | {"flags": tuple(row["flags"])}) for row in rows)


def advice(engine: str, version: str, *, size_bytes: int, memory_bytes: int) -> Advice:
    """How `engine` should read weights of this size on a host with this memory."""
    too_small = why_not("auto", size_bytes, memory_bytes)
    rows = tuple(
        row
        for row in loaders()
        if row.engine == engine
        and row.fits == (too_small is None)
        and SpecifierSet(row.versions).contains(version, prereleases=True)
    )
    if too_small is None:
        reason = (
            f"{size_bytes / 2**30:.1f} GiB of weights fit in {memory_bytes / 2**30:.1f} GiB of memory: keep them warm"
        )
    else:
        reason = f"{too_small}; read directly, past the page cache"
    return Advice(loaders=rows, reason=reason if rows else f"{reason}; no loader is known for {engine} {version}")
