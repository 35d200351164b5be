"""The room of the engine: its account, and who can reach what it serves."""

import pytest

from aerie.lock import Lock
from aerie.snapshot import Snapshot
from tests.hosts.reading import known

NO_LOGIN = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")


@pytest.mark.finding("engine.user-missing")
def test_the_service_account_exists(snapshot: Snapshot, lock: Lock) -> None:
    assert snapshot.engine.user == lock.engine.user


@pytest.mark.finding("engine.user-shell")
def test_nobody_can_log_in_as_the_service_account(snapshot: Snapshot) -> None:
    if snapshot.engine.user is None:
        pytest.skip("the service account does not exist")
    assert snapshot.engine.user_shell in NO_LOGIN


@pytest.mark.finding("engine.bind-open")
def test_engines_listen_on_the_locked_address_only(snapshot: Snapshot, lock: Lock) -> None:
    addresses = known(snapshot.engine.listening)
    allowed = (lock.engine.bind, "127.0.0.1", "::1")
    assert [one for one in addresses if one.rpartition(":")[0].strip("[]") not in allowed] == []
