"""The quick runbook in a state folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runbook_fixture.quick import Quick


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quick]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quick = Quick(tmp_path)
    monkeypatch.setenv("QUICK_FOLDER", str(quick.folder))
    yield quick
    quick.clean()
