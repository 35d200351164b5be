"""What a start imports: nothing that nobody here uses, and what is wanted later only later."""

import json
import subprocess
import sys

import pytest

from aerie.paths import repository


def imported_by(program: str) -> set[str]:
    """The modules that are there after this program, in a Python of its own."""
    code = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    argv = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(repository())!r})\n{code}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(found)


TESTS = sorted(file.stem for file in (repository() / "tests" / "hosts").glob("*.py"))


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import aerie.program", {"unittest.mock", "asyncio", "invoke.vendor.yaml.reader", "yaml", "pydantic"}),
        (
            "import aerie.program, aerie.inventory",
            {"importlib.metadata", "yaml", "ansible", "aerie.inventory.variables"},
        ),
        (
            "import aerie.program, tasks, aerie.verify, aerie.severity",
            {"rich", "fabric", "pytest", "aerie.snapshot", "aerie.findings", "aerie.report"},
        ),
        (f"from tests.hosts import {', '.join(TESTS)}", {"rich", "fabric", "paramiko", "yaml", "ansible"}),
    ],
    ids=["every-task", "with-an-inventory", "verify-until-it-connects", "tests-of-hosts"],
)
def test_a_start_imports_only_what_it_needs(program: str, absent: set[str]) -> None:
    assert imported_by(program) & absent == set()


def test_what_was_left_out_comes_when_it_is_asked_for() -> None:
    program = "import aerie.program\nfrom invoke.util import yaml\n"
    program += "assert [yaml.safe_load('a: 1'), yaml.safe_load('[2]')] == [{'a': 1}, [2]]\n"
    program += "import unittest.mock\nassert unittest.mock.Mock().anything"
    assert {"invoke.vendor.yaml.reader", "unittest.mock"} <= imported_by(program)
