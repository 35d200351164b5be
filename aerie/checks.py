"""What `test` runs: the tools of requirements/test.txt over this checkout, each as a developer would call it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import sidebyside, testrun
from .bootstrap import SetupFailed, ensure_tools
from .choice import unknown_name
from .errors import AerieError
from .paths import repository
from .testrun import Test

__all__ = ["CHECKS", "PARTS", "Check", "closing", "commands", "run"]

RESULTS = "results.xml"  # of pytest, in the folder of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check that ran. output: what it wrote, "" where that went to the terminal; tests: those that it ran."""

    name: str
    ok: bool
    wall_s: float
    output: str = ""
    tests: tuple[Test, ...] = ()

    def __str__(self) -> str:
        return f"{'ok    ' if self.ok else 'FAILED'}  {self.name:10} {self.wall_s:6.1f} s"


# One after the other in this order: of the time they take. Side by side in the opposite one, so that the longest is
# not begun last.
CHECKS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "yaml": ["yamllint", "--strict", "."],
    "generated": ["invoke", "docs", "--check"],
    "types": ["mypy"],
    "ansible": ["ansible-lint", "--offline", "-q", "--nocolor"],
    "unit": ["pytest", "tests/unit"],
    "hub": ["pytest", "tests/hub"],
    "engine": ["pytest", "tests/engine"],
    "lab": ["pytest", "tests/lab"],
}
PARTS = {
    "tests": {name: argv for name, argv in CHECKS.items() if argv[0] == "pytest"},
    # Those that the others and CI leave out: see the marker in pyproject.toml.
    "slow": {"slow": ["pytest", "-m", "slow", "tests/lab"]},
}


def commands(only: str = "") -> tuple[str, ...]:
    """What `run` would run, one command line each. Raises UsageError for an unknown name."""
    return tuple(" ".join(argv) for argv in _select(only).values())


def closing(done: Sequence[Check]) -> list[str]:
    """The lines at the end: of all tests the slowest and those that failed, then how each check ended."""
    return [*testrun.summary(test for check in done for test in check.tests), *map(str, done)]


def run(only: str = "", announce: Callable[[str], None] = lambda line: None) -> Iterator[Check]:
    """Run every check, or only the named one or part; each as it ends.

    Several run side by side where the machine has the processors and the memory for it. Installs
    requirements/test.txt first where it is missing. Goes on after a check that failed. Raises UsageError for an
    unknown name, and Interrupted after Ctrl-C or SIGTERM.
    """
    wanted = _select(only)
    root = repository()
    try:
        ensure_tools(root)
    except SetupFailed as error:
        raise AerieError("test tools", seen=str(error), expected="them in .venv", remedy="") from error
    at_once = min(sidebyside.at_once(), len(wanted))
    if at_once == 1:
        for name, argv in wanted.items():
            announce(f"{name}: {' '.join(argv)}")
            yield _check(root, name, argv)
        return
    announce(f"{at_once} at a time: {', '.join(reversed(wanted))}")
    lanes = [sidebyside.Lane(name=name, argv=_reporting(argv)) for name, argv in reversed(wanted.items())]
    for ended in sidebyside.run(lanes, at_once, cwd=root, environment=_environment(), say=announce):
        announce(f"{ended.name}: {' '.join(wanted[ended.name])}")
        tests = testrun.read(ended.folder / RESULTS)
        yield Check(name=ended.name, ok=ended.code == 0, wall_s=ended.wall_s, output=ended.output, tests=tests)


def _select(only: str) -> dict[str, list[str]]:
    if not only:
        return CHECKS
    if only in PARTS:
        return PARTS[only]
    if only in CHECKS:
        return {only: CHECKS[only]}
    raise unknown_name("--only", only, [*CHECKS, *PARTS])


def _reporting(argv: list[str]) -> list[str]:
    """The command with its program's path; pytest also leaves its results in the folder of its own."""
    options = [option.format(file=f"{{folder}}/{RESULTS}") for option in testrun.OPTIONS] if argv[0] == "pytest" else []
    return [str(Path(sys.executable).parent / argv[0]), *argv[1:], *options]


def _environment() -> dict[str, str]:
    tools = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _check(root: Path, name: str, argv: list[str]) -> Check:
    started = time.monotonic()
    program = str(Path(sys.executable).parent / argv[0])
    sys.stdout.flush()  # what was announced stands before what the child writes
    code = subprocess.run([program, *argv[1:]], cwd=root, env=_environment(), check=False).returncode
    return Check(name=name, ok=code == 0, wall_s=time.monotonic() - started)
