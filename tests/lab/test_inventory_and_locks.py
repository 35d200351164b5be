"""The lab's inventory and locks as an operator's: read by aerie, and a lock captured from a running host."""

from pathlib import Path

import pytest

import lab
from aerie import capture, inventory, lock

pytestmark = pytest.mark.lab


def test_the_labs_inventory_and_locks_are_as_good_as_any(lab_host: lab.LabHost) -> None:
    (host,) = inventory.select("lab:&lab[01:01]", lab_host.inventory)
    folder = inventory.folder(lab_host.inventory)
    assert (host.name, host.address, host.groups) == ("lab01", lab_host.address, ("lab",))
    assert inventory.lock_of(host, path=lab_host.inventory).name == "lab"
    assert {"lab", "lab-broken", "lab-next"} < set(lock.names(folder))


def test_a_lock_captured_from_a_running_host_has_what_the_host_is(cards_host: lab.LabHost, tmp_path: Path) -> None:
    host, folder = inventory.host("lab01", cards_host.inventory), inventory.folder(cards_host.inventory)
    captured = capture.of_host(host, folder, name="mine")
    (tmp_path / "locks").mkdir()
    written = capture.write_new(captured, tmp_path)
    assert written.read_text() == captured.text
    mine = lock.load("mine", tmp_path)
    assert mine == captured.lock
    own = inventory.lock_of(host, path=cards_host.inventory)
    assert (mine.driver.version, mine.driver.flavour) == (own.driver.version, "open")
    assert (mine.base.nofile, mine.kernel.blacklist) == (1024, ("nouveau",))  # of a host that nobody provisioned
