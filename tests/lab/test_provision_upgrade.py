"""The provisioned hosts of test_provision.py go on: changes that are refused, up, back, and a broken upgrade."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

import lab
from lab import LabHost
from roles import played, state_of

pytestmark = pytest.mark.lab

Said = Callable[..., str]
Call = Callable[..., tuple[int, dict[str, Any]]]
HOLD = (
    "import fcntl, time; file = open('/var/lib/dpkg/lock-frontend', 'w'); "
    "fcntl.lockf(file, fcntl.LOCK_EX); time.sleep({})"
)


@pytest.fixture
def host(provisioned: Any, pair: tuple[LabHost, ...], own_lab: Any) -> LabHost:
    """lab01, provisioned."""
    return pair[0]


@pytest.fixture
def invoke(call: Call, host: LabHost) -> Call:
    """Run a task against the lab's inventory, as an operator would; its exit code and its last JSON line."""
    return functools.partial(call, host)


def driver_of(host: LabHost) -> str:
    """The version in the loaded module, as the kernel tells it."""
    (version,) = re.findall(r"x86_64 +([\d.]+)", host.ssh(["cat", "/proc/driver/nvidia/version"]).stdout.decode())
    return version


def test_a_driver_of_the_runfile_is_refused(host: LabHost, said: Said) -> None:
    said(host, "touch", "/usr/bin/nvidia-uninstall")
    before = state_of(host)
    seen = played(host, "lab-next", "driver")
    said(host, "rm", "/usr/bin/nvidia-uninstall")
    assert not seen.ok and "driver.runfile: /usr/bin/nvidia-uninstall" in seen.text, seen.text
    assert state_of(host) == before


def test_programs_on_the_gpus_stop_a_change_of_driver(host: LabHost, said: Said) -> None:
    # The stand-in's nodes cannot be opened, so a file of a card's name takes the place of one.
    said(host, "sh", "-c", "mv /dev/nvidia0 /dev/kept; touch /dev/nvidia0")
    said(host, "systemd-run", "--unit=trainer", "sh", "-c", "exec 3</dev/nvidia0; exec sleep 600")
    before = state_of(host)
    seen = played(host, "lab-next", "driver")
    said(host, "systemctl", "stop", "trainer")
    said(host, "mv", "/dev/kept", "/dev/nvidia0")
    assert not seen.ok and re.search(r"GPUs in use: \d+ sleep;", seen.text), seen.text
    assert state_of(host) == before


def test_a_module_that_does_not_build_is_undone_and_its_log_shown(host: LabHost, said: Said) -> None:
    host.ssh(["tee", "/etc/lab/dkms-fail"], stdin=b"590.48.01\n")
    before = state_of(host)
    seen = played(host, "lab-next", "driver")
    said(host, "rm", "/etc/lab/dkms-fail")
    assert not seen.ok and "driver.module-missing" in seen.text, seen.text
    assert "vm_flags_set" in seen.text
    after = state_of(host)
    assert after["audit"] == ""
    assert [line for line in after["packages"].splitlines() if "nvidia" in line and " ii" in line] == [
        line for line in before["packages"].splitlines() if "nvidia" in line and " ii" in line
    ]
    assert driver_of(host) == "590.44.01"


def test_who_holds_apts_lock_is_named_after_the_wait(host: LabHost, said: Said) -> None:
    said(host, "systemd-run", "--unit=other-apt", "python3", "-c", HOLD.format(600))
    refused = played(host, "lab-next", "driver", driver_lock_timeout_s=3)
    said(host, "systemctl", "stop", "other-apt")
    assert not refused.ok
    told = r"base\.apt-locked: python3 \(pid \d+\) holds /var/lib/dpkg/lock-frontend"
    assert re.search(told, refused.text), refused.text


def test_an_upgrade_reboots_once_and_the_inventory_names_the_new_lock(host: LabHost, invoke: Call, said: Said) -> None:
    # Another package manager is at work; the upgrade waits for it.
    said(host, "systemd-run", "--unit=other-apt", "python3", "-c", HOLD.format(40))
    code, outcome = invoke("upgrade", "--host", "lab01", "--to", "lab-next", "--yes")
    assert code == 0, outcome
    assert [(one["state"], one["rebooted"]) for one in outcome["hosts"]] == [("done", True)]
    assert driver_of(host) == "590.48.01"
    assert "V13.1.115" in said(host, "sh", "-c", "nvcc --version")
    assert invoke("verify", "--host", "lab01")[0] == 0
    (planned,) = invoke("plan", "--host", "lab01")[1]["hosts"]
    assert planned["lock"] == "lab-next"


def test_the_roles_change_nothing_after_an_upgrade(host: LabHost) -> None:
    again = played(host, "lab-next", "driver", "cuda")
    assert again.ok and again.changed == 0 and again.reasons == [], again.text


def test_a_rollback_returns_to_the_lock_before_without_the_repository(host: LabHost, invoke: Call, said: Said) -> None:
    lab.repository_mode("gone")
    try:
        code, outcome = invoke("rollback", "--host", "lab01", "--yes")
    finally:
        lab.repository_mode("normal")
    assert code == 0, outcome
    assert driver_of(host) == "590.44.01"
    assert "V13.1.80" in said(host, "sh", "-c", "nvcc --version")
    assert invoke("verify", "--host", "lab01")[0] == 0
    # Nothing of the other version is left that would pull it up again.
    said(host, "apt-get", "update")
    assert "nvidia-open" not in said(host, "apt-get", "--simulate", "dist-upgrade")


def test_a_broken_upgrade_is_detected_and_taken_back(host: LabHost, invoke: Call) -> None:
    code, outcome = invoke("upgrade", "--host", "lab01", "--to", "lab-broken", "--yes", "--auto-rollback")
    assert code == 1
    assert outcome["rollback"]["hosts"][0]["state"] == "done", outcome
    assert driver_of(host) == "590.44.01"
    assert invoke("verify", "--host", "lab01")[0] == 0
