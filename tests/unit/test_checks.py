"""What `test` runs: every test in one of its checks, and one closing of failures and slowest tests for all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from aerie import checks, testrun
from aerie.errors import UsageError
from aerie.paths import repository

MODULE = """\
import pytest

def test_good():
    pass

class TestIt:
    @pytest.mark.parametrize("case", ["a b"])
    def test_bad(self, case):
        assert case == "a", "not\\nequal"

@pytest.fixture
def broken():
    raise RuntimeError("no lab")

def test_not_set_up(broken):
    pass
"""


def test_every_folder_of_tests_is_in_one_check() -> None:
    folders = {path.parent.relative_to(repository()).parts[:2] for path in repository().glob("tests/**/test_*.py")}
    ran = [Path(argv[1]).parts for argv in checks.PARTS["tests"].values()]
    # tests/hosts asks hosts: `verify` runs it, and so does tests/lab.
    assert sorted(ran) == sorted(folders - {("tests", "hosts")})


@pytest.mark.parametrize(
    ("only", "commands"),
    [
        ("lab", ("pytest tests/lab",)),
        ("tests", ("pytest tests/unit", "pytest tests/hub", "pytest tests/engine", "pytest tests/lab")),
        ("slow", ("pytest -m slow tests/lab",)),
        ("types", ("mypy",)),
    ],
)
def test_a_part_is_its_commands(only: str, commands: tuple[str, ...]) -> None:
    assert checks.commands(only) == commands


def test_an_unknown_part_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean engine"):
        checks.commands("engin")


def test_failures_of_all_runs_stand_at_the_end_by_the_name_that_pytest_takes(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(MODULE)
    (tmp_path / "tests/test_unreadable.py").write_text("import nothing_of_that_name\n")
    options = [option.format(file=tmp_path / "results.xml") for option in testrun.OPTIONS]
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "tests"]
    done = subprocess.run([*argv, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    tests = testrun.read(tmp_path / "results.xml")
    slow = testrun.Test(id="tests/test_other.py::test_slow", wall_s=61.25, failure="")
    ended = [
        checks.Check(name="unit", ok=False, wall_s=3.0, tests=tests),
        checks.Check(name="lab", ok=True, wall_s=70.0, tests=(slow,)),
    ]
    lines = checks.closing(ended)
    assert lines[0] == "    61.2 s  tests/test_other.py::test_slow"
    assert [line.partition(": ")[0] for line in lines[1:-2]] == [
        "FAILED  tests/test_unreadable.py",
        "FAILED  tests/test_it.py::TestIt::test_bad[a b]",
        "FAILED  tests/test_it.py::test_not_set_up",
    ]
    assert "RuntimeError: no lab" in lines[3]
    assert lines[-2:] == ["FAILED  unit          3.0 s", "ok      lab          70.0 s"]


def test_a_run_that_was_killed_left_no_results(tmp_path: Path) -> None:
    assert testrun.read(tmp_path / "results.xml") == ()
