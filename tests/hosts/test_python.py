"""The host's own Python and the hash-locked environments."""

import pytest

from aerie.lock import Lock
from aerie.snapshot import Snapshot
from tests.hosts.reading import Dotted, known


@pytest.mark.finding("python.too-old")
def test_the_python_of_the_host_is_new_enough(snapshot: Snapshot, lock: Lock) -> None:
    assert Dotted(snapshot.python.system) >= Dotted(lock.python.version)


@pytest.mark.finding("python.environment-missing")
def test_every_locked_environment_is_there(snapshot: Snapshot, lock: Lock) -> None:
    assert sorted({one.name for one in lock.python.environments} - set(snapshot.python.environments)) == []


@pytest.mark.finding("python.environment-drift")
def test_every_environment_was_made_from_the_locked_requirements(snapshot: Snapshot, lock: Lock) -> None:
    there = snapshot.python.environments
    wanted = {one.name: one.sha256 for one in lock.python.environments if one.name in there}
    assert {name: known(there[name].requirements_sha256) for name in wanted} == wanted
