"""What a build compiled so far, from what its gate and its compiler cache wrote down."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Unit", "Units", "read_units"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One file that was compiled. peak_bytes: of its largest process; again: after the kernel had ended it once."""

    source: str
    code: int
    again: bool
    waited_s: float
    wall_s: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """ran: every compiler that ran, those that failed too; cached: files taken from the cache."""

    ran: tuple[Unit, ...]
    cached: int

    @property
    def compiled(self) -> int:
        """Files compiled."""
        return sum(unit.code == 0 for unit in self.ran)

    @property
    def again(self) -> int:
        """Files compiled a second time."""
        return sum(unit.again for unit in self.ran)

    @property
    def held_back_s(self) -> float:
        """Seconds that files waited for memory, all added up."""
        return sum(unit.waited_s for unit in self.ran)


def read_units(tools: Path) -> Units:
    """Of the build whose tools lie there (toolchain.variables)."""
    lines = _lines(tools / "gate/units.jsonl")
    return Units(ran=tuple(Unit(**json.loads(line)) for line in lines), cached=sum(_hits(_lines(tools / "cache.log"))))


def _hits(lines: list[str]) -> Iterator[bool]:
    """For each file that ccache was asked for, whether it had it. A file's counters follow its name, "# a.cu"."""
    is_hit = False
    for line in [*lines, "#"]:
        if line.startswith("#"):
            yield is_hit
            is_hit = False
        elif line in ("direct_cache_hit", "preprocessed_cache_hit"):
            is_hit = True


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []
