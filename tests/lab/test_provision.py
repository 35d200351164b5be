"""From nothing: two bare GPU hosts are planned, provisioned, verified, upgraded, broken and taken back."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie import provision
from lab import LabHost, scenario

pytestmark = pytest.mark.lab

BOTH = "lab01,lab02"
GPU_LAYERS = ["driver", "cuda"]
# A provisioned host has its driver, and ACS is cleared: what `bare` says of a new host is over.
SCENARIOS = [name for name in scenario.names() if name != "bare"]


@pytest.fixture(scope="module")
def hosts(lab_home: Path) -> Iterator[tuple[LabHost, ...]]:
    """Two fresh hosts with cards and no driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        yield lab.up(2, gpus="bare")
        lab.down()


@pytest.fixture(scope="module")
def invoke(call, hosts):
    """Run a task against the lab's inventory, as an operator would; its exit code and its last JSON line."""
    return functools.partial(call, hosts[0])


def driver_of(host: LabHost) -> str:
    """The version in the loaded module, as the kernel tells it."""
    return (
        host.ssh(["sed", "-n", r"s/.*x86_64 *\([0-9.]*\).*/\1/p", "/proc/driver/nvidia/version"])
        .stdout.decode()
        .strip()
    )


def boots_of(host: LabHost) -> str:
    return host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.decode().strip()


def by_host(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["host"]: one for one in document["hosts"]}


def test_the_plan_of_bare_hosts_shows_the_drift_and_one_reboot(invoke):
    code, plan = invoke("plan", "--host", BOTH)
    assert code == 3
    for host in by_host(plan).values():
        assert "driver.not-installed" in [finding["id"] for finding in host["findings"]]
        assert set(GPU_LAYERS) <= set(host["apply"])
        assert host["reboot"]["needed"]


def test_provisioning_reboots_each_host_once_and_verifies(invoke, hosts):
    before = [boots_of(host) for host in hosts]
    code, outcome = invoke("provision", "--host", BOTH, "--yes")
    assert code == 0, outcome
    assert [(one["state"], one["rebooted"]) for one in outcome["hosts"]] == [("done", True)] * 2
    assert all(boots_of(host) != boot for host, boot in zip(hosts, before, strict=True))
    assert [driver_of(host) for host in hosts] == ["590.44.01"] * 2


def test_verification_is_green_afterwards(invoke):
    code, verification = invoke("verify", "--host", BOTH)
    assert code == 0, verification


def test_a_second_provisioning_runs_nothing(invoke, hosts):
    before = [boots_of(host) for host in hosts]
    code, outcome = invoke("provision", "--host", BOTH, "--yes")
    assert (code, [one["state"] for one in outcome["hosts"]], outcome["folder"]) == (0, ["unchanged"] * 2, None)
    assert [boots_of(host) for host in hosts] == before


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_cards_gives_its_finding_and_only_that(name, hosts, own_lab):
    chosen = lab.gpu("lab02", name)
    (planned,) = provision.prepare("lab02", inventory_file=hosts[0].inventory).plan.hosts
    seen = {finding.id: finding.seen for finding in planned.findings}
    assert list(seen) == ([] if chosen.finding is None else [chosen.finding]), seen


def test_an_upgrade_reboots_once_and_the_inventory_names_the_new_lock(invoke, hosts):
    code, outcome = invoke("upgrade", "--host", "lab01", "--to", "lab-next", "--yes")
    assert code == 0, outcome
    assert [(one["state"], one["rebooted"]) for one in outcome["hosts"]] == [("done", True)]
    assert driver_of(hosts[0]) == "590.48.01"
    assert invoke("verify", "--host", "lab01")[0] == 0
    assert by_host(invoke("plan", "--host", "lab01")[1])["lab01"]["lock"] == "lab-next"


def test_a_rollback_returns_to_the_lock_before_without_the_repository(invoke, hosts):
    lab.repository_mode("gone")
    try:
        code, outcome = invoke("rollback", "--host", "lab01", "--yes")
    finally:
        lab.repository_mode("normal")
    assert code == 0, outcome
    assert driver_of(hosts[0]) == "590.44.01"
    assert invoke("verify", "--host", "lab01")[0] == 0


def test_a_broken_upgrade_is_detected_and_taken_back(invoke, hosts):
    code, outcome = invoke("upgrade", "--host", "lab01", "--to", "lab-broken", "--yes", "--auto-rollback")
    assert code == 1
    assert outcome["rollback"]["hosts"][0]["state"] == "done", outcome
    assert driver_of(hosts[0]) == "590.44.01"
    assert invoke("verify", "--host", "lab01")[0] == 0
