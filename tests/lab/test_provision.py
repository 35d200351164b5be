"""From nothing: two bare GPU hosts are planned, refuse what is wrong, are provisioned and verified, and stay so.

The files test_provision*.py tell one story of the same two hosts, in order.
"""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import lab
from aerie import provision
from aerie.lock import load, role_variables
from aerie.paths import repository
from lab import LabHost, scenario
from roles import played, state_of

pytestmark = pytest.mark.lab

Said = Callable[..., str]
Call = Callable[..., tuple[int, dict[str, Any]]]
BOTH = "lab01,lab02"
GPU_LAYERS = ["driver", "cuda"]
# A provisioned host has its driver, and ACS is cleared: what `bare` says of a new host is over.
SCENARIOS = [name for name in scenario.names() if name != "bare"]


@pytest.fixture(scope="module")
def invoke(call: Call, pair: tuple[LabHost, ...]) -> Call:
    """Run a task against the lab's inventory, as an operator would; its exit code and its last JSON line."""
    return functools.partial(call, pair[0])


@pytest.fixture
def hosts(pair: tuple[LabHost, ...], own_lab: Any) -> tuple[LabHost, ...]:
    """lab01 and lab02; `lab.…` acts on them."""
    return pair


def boot_of(host: LabHost) -> str:
    return host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.decode().strip()


def test_the_plan_of_bare_hosts_shows_the_drift_and_one_reboot(invoke: Call) -> None:
    code, plan = invoke("plan", "--host", BOTH)
    assert code == 3
    for host in plan["hosts"]:
        assert "driver.not-installed" in [finding["id"] for finding in host["findings"]]
        assert set(GPU_LAYERS) <= set(host["apply"])
        assert host["reboot"]["needed"]


def test_check_mode_passes_on_a_bare_host_and_says_what_it_cannot_know(hosts: tuple[LabHost, ...]) -> None:
    before = state_of(hosts[1])
    seen = played(hosts[1], "lab", "driver", "interconnect", "cuda", check=True)
    assert seen.ok, seen.text
    assert "to be resolved after the repository is added: nvidia-driver-pinning-590.44.01, nvidia-open" in seen.text
    assert state_of(hosts[1]) == before


WRONG = {
    "gone": "Connection refused",
    "bad-hash": "Hash Sum mismatch|unexpected size",
    "rotated-key": "Missing key|NO_PUBKEY",
}


@pytest.mark.parametrize("mode", WRONG)
def test_a_repository_that_went_wrong_changes_nothing(mode: str, hosts: tuple[LabHost, ...]) -> None:
    before = state_of(hosts[1])
    lab.repository_mode(mode)
    try:
        seen = played(hosts[1], "lab", "driver")
    finally:
        lab.repository_mode("normal")
    assert not seen.ok
    assert "driver.repository-wrong" in seen.text and re.search(WRONG[mode], seen.text), seen.text
    assert "Nothing was changed" in seen.text
    assert state_of(hosts[1]) == before


def test_a_key_of_another_checksum_changes_nothing(hosts: tuple[LabHost, ...]) -> None:
    before, wrong = state_of(hosts[1]), "0" * 64
    locked = role_variables(load("lab", hosts[1].inventory.parent))["driver_repository"]
    seen = played(hosts[1], "lab", "driver", driver_repository={**locked, "key_sha256": wrong})
    assert not seen.ok
    assert f"expected a file of SHA-256 {wrong}. Nothing was changed." in seen.text, seen.text
    assert state_of(hosts[1]) == before


def test_provisioning_reboots_each_host_once_and_verifies(
    provisioned: Any, hosts: tuple[LabHost, ...], said: Said
) -> None:
    assert provisioned.exit_code == 0, provisioned.outcome
    ended = [(one["state"], one["rebooted"]) for one in provisioned.outcome["hosts"]]
    assert ended == [("done", True)] * 2
    for host, before in zip(hosts, provisioned.boots, strict=True):
        assert boot_of(host) != before
        # The version of the loaded module, as the kernel tells it.
        assert re.findall(r"x86_64 +([\d.]+)", said(host, "cat", "/proc/driver/nvidia/version")) == ["590.44.01"]
        assert said(host, "cat", "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") == "Y"
        assert "V13.1.80" in said(host, "sh", "-c", "nvcc --version")


def test_the_reboot_has_the_reasons_of_its_layers_and_no_other(provisioned: Any) -> None:
    assert set(re.findall(r"(\w+\.[a-z-]+): ", provisioned.log)) == {"kernel.cmdline-drift", "driver.not-loaded"}


def test_a_second_source_of_the_same_repository_is_emptied(
    provisioned: Any, hosts: tuple[LabHost, ...], said: Said
) -> None:
    assert said(hosts[0], "cat", "/etc/apt/sources.list.d/cuda.list") == ""


def test_verification_is_green_afterwards(provisioned: Any, invoke: Call) -> None:
    code, verification = invoke("verify", "--host", BOTH)
    assert code == 0, verification


def test_a_second_provisioning_runs_nothing(provisioned: Any, invoke: Call, hosts: tuple[LabHost, ...]) -> None:
    before = [boot_of(host) for host in hosts]
    code, outcome = invoke("provision", "--host", BOTH, "--yes")
    assert (code, [one["state"] for one in outcome["hosts"]], outcome["folder"]) == (0, ["unchanged"] * 2, None)
    assert [boot_of(host) for host in hosts] == before


def test_the_roles_themselves_change_nothing_either(provisioned: Any, hosts: tuple[LabHost, ...]) -> None:
    again = played(hosts[0], "lab", "driver", "interconnect", "cuda")
    assert again.ok and again.changed == 0 and again.reasons == [], again.text


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_cards_gives_its_finding_and_only_that(
    name: str, provisioned: Any, hosts: tuple[LabHost, ...]
) -> None:
    chosen = lab.gpu("lab02", name)
    (planned,) = provision.prepare("lab02", inventory_file=hosts[0].inventory).plan.hosts
    seen = {finding.id: finding.seen for finding in planned.findings}
    assert list(seen) == ([] if chosen.finding is None else [chosen.finding]), seen


def test_access_control_is_cleared_now_and_at_the_next_boot(
    provisioned: Any, hosts: tuple[LabHost, ...], said: Said, reboot: Callable[..., None]
) -> None:
    host = hosts[1]
    program = (repository() / "roles/interconnect/files/acs.py").read_bytes()

    def bits() -> set[int]:
        shown = host.ssh(["python3", "-", "show"], stdin=program).stdout
        return set(json.loads(shown)["acs"].values())

    lab.gpu("lab02", "iommu-translating")
    translating = played(host, "lab", "interconnect")
    assert not translating.ok and "interconnect.iommu-translating: 0000:06:00.0" in translating.text, translating.text
    lab.gpu("lab02", "acs-on")
    assert bits() not in ({0}, set())
    seen = played(host, "lab", "interconnect")
    assert seen.ok, seen.text
    assert bits() == {0}
    reboot(host)
    assert said(host, "systemctl", "is-active", "aerie-acs") == "active"
    lab.gpu("lab02", "acs-on")  # as the firmware does at a boot; the stand-in does not
    said(host, "systemctl", "restart", "aerie-acs")
    assert bits() == {0}
    left = played(host, "lab", "interconnect", interconnect_acs="any")
    assert left.ok, left.text
    assert host.ssh(["systemctl", "cat", "aerie-acs"]).returncode != 0
