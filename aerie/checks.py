"""What `test` runs: the tools of requirements/test.txt over this checkout, each as a developer would call it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .bootstrap import SetupFailed, ensure_tools
from .choice import unknown_name
from .errors import AerieError
from .paths import repository

__all__ = ["CHECKS", "PARTS", "Check", "commands", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check that ran. Its output went to the terminal."""

    name: str
    ok: bool
    wall_s: float

    def __str__(self) -> str:
        return f"{'ok    ' if self.ok else 'FAILED'}  {self.name:10} {self.wall_s:6.1f} s"


# In the order of the time they take. pytest stands last, so that its closing line closes the output.
CHECKS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "yaml": ["yamllint", "--strict", "."],
    "ansible": ["ansible-lint", "--offline", "-q", "--nocolor"],
    "generated": ["invoke", "docs", "--check"],
    "types": ["mypy"],
    "tests": ["pytest"],
}
PARTS = {
    "unit": ["tests/unit"],
    "engine": ["tests/engine"],
    "lab": ["tests/lab"],
    "slow": ["-m", "slow", "tests/lab"],  # those that the others and CI leave out: see the marker in pyproject.toml
}


def commands(only: str = "") -> tuple[str, ...]:
    """What `run` would run, one command line each. Raises UsageError for an unknown name."""
    return tuple(" ".join(argv) for argv in _select(only).values())


def run(only: str = "", announce: Callable[[str], None] = lambda line: None) -> tuple[Check, ...]:
    """Run every check, or only the named one; `unit`, `engine`, `lab` and `slow` are pytest on that part of the tests.

    Installs requirements/test.txt first where it is missing. Goes on after a check that failed.
    """
    wanted = _select(only)
    root = repository()
    try:
        ensure_tools(root)
    except SetupFailed as error:
        raise AerieError("test tools", seen=str(error), expected="them in .venv", remedy="") from error
    done = []
    for name, argv in wanted.items():
        announce(f"{name}: {' '.join(argv)}")
        done.append(_check(root, name, argv))
    return tuple(done)


def _select(only: str) -> dict[str, list[str]]:
    if not only:
        return CHECKS
    if only in PARTS:
        return {only: ["pytest", *PARTS[only]]}
    if only in CHECKS:
        return {only: CHECKS[only]}
    raise unknown_name("--only", only, [*CHECKS, *PARTS])


def _check(root: Path, name: str, argv: list[str]) -> Check:
    started = time.monotonic()
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    sys.stdout.flush()  # what was announced stands before what the child writes
    code = subprocess.run([str(tools / argv[0]), *argv[1:]], cwd=root, env=environment, check=False).returncode
    return Check(name=name, ok=code == 0, wall_s=time.monotonic() - started)
