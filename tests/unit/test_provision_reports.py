"""What is refused before a play: names that are unknown, and hosts whose GPUs are in use."""

from pathlib import Path

import pytest
import yaml

from aerie import inventory, provision
from aerie.errors import UsageError
from aerie.plan import Plan
from aerie.provision import Prepared, State
from tests.snapshots import snapshot_with
from tests.unit.findings.examples import a_host, lock_with
from tests.unit.test_plan import BUSY, DRIVER, TODAY, host_plan


def test_an_unknown_layer_is_told_the_nearest_before_any_host_is_looked_for():
    with pytest.raises(UsageError, match="Did you mean driver") as raised:
        provision.prepare("no-such-host", layers=["base", "drivers"])
    assert (raised.value.seen, raised.value.exit_code) == ("drivers", 2)


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """gpu01, whose driver is to change while an engine and a program use its GPUs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host, lock, snapshot = a_host(), lock_with({}), snapshot_with({**DRIVER, **BUSY})
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {host.name: {}}}}))
    return Prepared(
        plan=Plan(hosts=(host_plan(host, lock, snapshot, TODAY),)),
        inventory=tmp_path / "hosts.yml",
        hosts={host.name: host},
        locks={host.name: lock},
        lock_files={host.name: tmp_path / "x.lock.toml"},
        snapshots={host.name: snapshot},
    )


def test_a_host_whose_gpus_are_in_use_is_left_alone_and_the_users_are_named(busy: Prepared):
    outcome = provision.apply(busy)
    (host,) = outcome.hosts
    assert (host.state, outcome.exit_code, outcome.folder, outcome.verification) == (State.REFUSED, 1, None, None)
    assert host.error == (
        "python3 (pid 99), sglang.service (pid 4711), sglang.service (pid 4712) use the GPUs; "
        "stop them, or give --allow-busy"
    )
    assert [one.name for one in inventory.select("@failed", busy.inventory)] == [host.host]
