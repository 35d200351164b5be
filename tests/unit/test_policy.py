"""Which tests run: a demanding one may be skipped by hand, never in CI; a slow one is left out unless asked for."""

import os
import subprocess
import sys

import pytest

from aerie.paths import repository

SKIPS = """\
import pytest

@pytest.mark.{marker}
def test_it():
    pytest.skip("no engine here")
"""


@pytest.mark.parametrize(
    ("marker", "ci", "counted"),
    [
        ("lab", "", "1 skipped"),
        ("lab", "true", "1 failed"),
        ("engine", "true", "1 failed"),
        ("xdist_group", "", "rror"),
    ],
    ids=["by-hand", "lab-in-ci", "engine-in-ci", "unknown-marker"],
)
def test_a_skip_of_a_demanding_test(tmp_path, marker, ci, counted):
    (tmp_path / "test_it.py").write_text(SKIPS.format(marker=marker))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml", str(tmp_path)]
    environment = {**os.environ, "CI": ci, "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(command, cwd=repository(), env=environment, capture_output=True, text=True, check=False)
    assert counted in result.stdout
    assert ("no engine here" in result.stdout) is (marker != "xdist_group")


@pytest.mark.parametrize(("asked", "counted"), [((), "1 deselected"), (("-m", "slow"), "1 passed")])
def test_what_is_slow_runs_when_it_is_asked_for(tmp_path, asked, counted):
    (tmp_path / "test_it.py").write_text("import pytest\n\n@pytest.mark.slow\ndef test_it():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", *asked, str(tmp_path)]
    result = subprocess.run(command, cwd=repository(), capture_output=True, text=True, check=False)
    assert counted in result.stdout
