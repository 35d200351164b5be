"""The unit tests that need torch, run by the train environment's own Python; elsewhere they skip."""

import os
import subprocess
from pathlib import Path

import pytest

from aerie import environments
from aerie.paths import repository

pytestmark = pytest.mark.engine
PURE = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")


def test_unit_tests_that_need_torch(tmp_path: Path) -> None:
    # The train environment is locked for training and has no pytest: lend it this one, which is pure Python.
    for name in PURE:
        module = __import__(name)
        assert module.__file__ is not None
        file = Path(module.__file__)
        found = file.parent if file.name == "__init__.py" else file
        (tmp_path / found.name).symlink_to(found)
    done = subprocess.run(
        [environments.ensure("train").python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/unit/eagle3"],
        cwd=repository(),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
