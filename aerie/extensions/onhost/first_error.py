"""The first thing that went wrong in a build, out of thousands of lines of which most only follow from it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aerie.errors import AerieError

__all__ = ["first_error"]

MOST: Final = 600
KEPT_LINES: Final = 5
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded", re.I)
# nvcc's front end writes file(line): error: …, g++ file:line:column: error: …
_AT_LINE = re.compile(
    r"^(?P<file>[^\s:(][^:(]*?)(?:\((?P<a>\d+)\)|:(?P<b>\d+)(?::\d+)?): "
    r"(?:(?:fatal|catastrophic|internal) )?error\b[^:]*: ?(?P<what>.*)"
)
_PTXAS = re.compile(r"^ptxas (?P<file>\S+), line (?P<a>\d+); (?:error|fatal) *: (?P<what>.*)")
_OF_TOOL = re.compile(
    r"^(?P<file>nvcc|ptxas|nvlink|fatbinary|cicc|g\+\+|c\+\+|cc1plus|collect2|ld|/usr/bin/ld) *"
    r"(?P<what>(?:fatal|error)\b.*|: (?:fatal error|error|cannot)\b.*)"
)
_UNDEFINED = re.compile(r"^(?P<file>.+?\.(?:o|cu|cpp|a)):?.*: (?P<what>undefined reference to .*)")
_KILLED = re.compile(r"died due to signal 9|Killed signal terminated|Killed$")
_CMAKE = re.compile(r"^CMake Error(?: at (?P<file>\S+?):\d+)?.*")
_PYTHON = re.compile(r"^(?P<what>[A-Za-z_.]*(?:Error|Exception|Exit)\b.*)")


def first_error(lines: Iterable[str], *, log: Path, killed: int, budget_bytes: int) -> AerieError:
    """What the build's output says went wrong first, with the file that it is in, and what to do.

    killed: how many of its processes the kernel ended for want of memory. log: where the output lies, for the remedy.
    """
    last: list[str] = []
    killed_line = ""
    python: AerieError | None = None
    rows = iter(lines)
    for row in rows:
        line = row.rstrip("\n")
        if line.strip():
            last = [*last[-(KEPT_LINES - 1) :], line.strip()]
        if _NO_SPACE.search(line):
            return _no_space(line)
        if _KILLED.search(line):  # it may have gone well when it ran again, alone
            killed_line = line.strip()
            continue
        if match := _PTXAS.match(line) or _AT_LINE.match(line) or _UNDEFINED.match(line) or _OF_TOOL.match(line):
            return _compile(match, rows, log)
        if match := _CMAKE.match(line):
            what = " ".join(_following(rows)) or line
            return _error(match["file"] or "CMake", what, "what CMake takes", f"The whole output is in {log}")
        if python is None and (match := _PYTHON.match(line)):
            python = _python(match["what"], log)
    if killed or killed_line:
        return _memory(budget_bytes, killed_line or (last[-1] if last else ""))
    return python or _error("the build", " | ".join(last) or "no output", "a wheel", f"The whole output is in {log}")


def _compile(match: "re.Match[str]", rows: Iterable[str], log: Path) -> AerieError:
    groups = match.groupdict()
    number = groups.get("a") or groups.get("b")
    where = f"{groups['file'].strip()}:{number}" if number else groups["file"].strip()
    what = groups["what"].strip().lstrip(": ") or " ".join(_following(rows))
    remedy = f"The whole output is in {log}; later errors may only follow from this one."
    return _error(where, what, "code that this compiler takes", remedy)


def _following(rows: Iterable[str]) -> list[str]:
    found: list[str] = []
    for row in rows:
        if row.strip():
            found.append(row.strip())
        if len(found) == 2:
            break
    return found


def _python(what: str, log: Path) -> AerieError:
    if missing := re.match(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", what):
        return _error(
            "the build's environment", what, f"{missing[1]}, which the package's own build imports",
            "Add it to the environment's requirements: builds take what they need from there.",
        )  # fmt: skip
    return _error("the build", what, "a wheel", f"The whole output is in {log}")


def _no_space(line: str) -> AerieError:
    return _error(
        "the build's folder", line.strip(), "room on its disk for sources, objects and the wheel",
        "Free some, or name another folder for work. What was compiled before is in the compiler cache.",
    )  # fmt: skip


def _memory(budget_bytes: int, line: str) -> AerieError:
    return _error(
        "memory", f"the kernel ended a compiler, also when it ran alone: {line}",
        f"no file that takes more than the budget, {budget_bytes / 2**30:.1f} GiB",
        "Give the build more memory, or build on another host and install from the store.",
    )  # fmt: skip


def _error(where: str, seen: str, expected: str, remedy: str) -> AerieError:
    return AerieError(where, seen=seen[:MOST], expected=expected, remedy=remedy)
