"""What several runs of pytest say together: the tests that failed, and the slowest, from their JUnit files."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OPTIONS", "Test", "read", "summary"]

# For pytest; {file} is where it is to write. Only this family of JUnit has the file of a test.
OPTIONS = ("--junitxml={file}", "--override-ini=junit_family=xunit1")
SLOWEST = 12
SHORTEST_S = 1.0  # of what is worth a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A test that ran. wall_s: with its set-up and teardown; failure: the first line of each, "" when it passed."""

    id: str  # as pytest takes it: "tests/unit/test_plan.py::test_it[case]"
    wall_s: float
    failure: str


def read(file: Path) -> tuple[Test, ...]:
    """The tests of a run, in order. None when pytest was killed: it writes the file at its end."""
    try:
        cases = ElementTree.parse(file).iter("testcase")
    except FileNotFoundError:
        return ()
    return tuple(_test(case) for case in cases)


def summary(tests: Iterable[Test]) -> Sequence[str]:
    """Lines for a person: the slowest tests, then those that failed, the most important at the end."""
    tests = list(tests)
    slowest = sorted(tests, key=lambda test: test.wall_s, reverse=True)[:SLOWEST]
    return [
        *(f"{test.wall_s:8.1f} s  {test.id}" for test in slowest if test.wall_s >= SHORTEST_S),
        *(f"FAILED  {test.id}: {test.failure}" for test in tests if test.failure),
    ]


def _test(case: ElementTree.Element) -> Test:
    words = [_first_line(one) for kind in ("failure", "error") for one in case.iter(kind)]
    return Test(id=_id(case), wall_s=float(case.get("time", "0")), failure="; ".join(words))


def _id(case: ElementTree.Element) -> str:
    """File, classes and name; a module that could not be collected is its file."""
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    # "tests.unit.test_plan", or in a class of that module "tests.unit.test_plan.TestIt".
    inner = [case.get(key, "").removeprefix(module).lstrip(".") for key in ("classname", "name")]
    return "::".join(part for part in (file, *inner) if part)


def _first_line(element: ElementTree.Element) -> str:
    lines = (element.get("message") or element.text or "no message").strip().splitlines()
    return lines[0] if lines else "no message"
