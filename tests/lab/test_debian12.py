"""The same roles on Debian 12: a bare GPU host with its older systemd, apt, dkms and Python, from nothing to no-op."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie import provision
from lab import LabHost

pytestmark = [pytest.mark.lab, pytest.mark.slow]  # a base image of its own, and the story of test_provision.py again

Call = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def host(lab_home: Path) -> Iterator[LabHost]:
    """A Debian 12 host with cards and no driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        yield lab.up(1, gpus="bare", suite="bookworm")[0]
        lab.down()


@pytest.mark.parametrize(("lock", "is_for_it"), [("debian12-cuda131", True), ("debian13-cuda131", False)])
def test_the_shipped_lock_of_this_system_and_no_other_fits(
    host: LabHost, own_lab: Path, lock: str, is_for_it: bool
) -> None:
    (planned,) = provision.prepare("lab01", inventory_file=host.inventory, lock=lock).plan.hosts
    found = {finding.id for finding in planned.findings}
    assert ("base.unsupported-system" not in found) is is_for_it
    assert "driver.repository-wrong" not in found  # of the other lock it goes without saying
    assert "driver.not-installed" in found


def test_a_bare_host_is_provisioned_with_one_reboot_and_verifies(host: LabHost, call: Call) -> None:
    assert b'\nVERSION_ID="12"\n' in host.ssh(["cat", "/etc/os-release"]).stdout
    code, outcome = call(host, "provision", "--host", "lab01", "--yes")
    assert code == 0, outcome
    assert [(one["state"], one["rebooted"]) for one in outcome["hosts"]] == [("done", True)]
    code, verification = call(host, "verify", "--host", "lab01")
    assert code == 0, verification


def test_a_second_provisioning_runs_nothing(host: LabHost, call: Call) -> None:
    code, outcome = call(host, "provision", "--host", "lab01", "--yes")
    assert (code, [one["state"] for one in outcome["hosts"]], outcome["folder"]) == (0, ["unchanged"], None)
