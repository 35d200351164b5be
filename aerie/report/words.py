"""Numbers as people read them, the same on the console and on the page."""

from collections.abc import Mapping

from aerie.runbook.step import Json

__all__ = ["MISSING", "duration", "flat", "number", "size", "spread"]

MISSING = "–"


def duration(seconds: float | None) -> str:
    """ "0.4 s", "52 s", "7 m 05 s", "1 h 12 m"."""
    if seconds is None:
        return MISSING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} m"


def number(value: float | None, form: str = ".3f") -> str:
    """The value, or a dash where nothing was measured."""
    return MISSING if value is None else format(value, form)


def spread(value: Mapping[str, float] | None, form: str = ".2f") -> str:
    """ "1.18 (1.16–1.28)", median and range."""
    if value is None:
        return MISSING
    return f"{value['median']:{form}} ({value['min']:{form}}–{value['max']:{form}})"


def size(size_bytes: float) -> str:
    """Decimal units, as disks and files have: "35.1 MB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size_bytes < 999.5 or unit == "TB":
            break
        size_bytes /= 1000
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.3g} {unit}"


def flat(values: Mapping[str, Json], above: str = "") -> dict[str, Json]:
    """Nested values by dotted path, in their order."""
    found: dict[str, Json] = {}
    for key, value in values.items():
        path = f"{above}{key}"
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found
