"""Roles driver, interconnect and cuda on a lab host: in from bare, up, back without a network, and how each may fail.

The tests tell one host's story, in order: bare, driver 590.44.01, 590.48.01, and back.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie.lock import load, role_variables
from aerie.paths import repository
from lab import LabHost

pytestmark = pytest.mark.lab

Said = Callable[..., str]
PLAY = """\
- hosts: lab01
  gather_facts: false
  become: true
  tasks:
    - name: Apply a layer
      ansible.builtin.include_role:
        name: "{{ aerie_layer }}"
      loop: "{{ aerie_layers }}"
      loop_control:
        loop_var: aerie_layer
    - name: Say the reasons
      ansible.builtin.debug:
        msg: "REASONS={{ aerie_reboot_reasons | default([]) | to_json | b64encode }}"
"""
STORE = "/var/cache/aerie/packages"
# The role kernel, whose tests are elsewhere, gives the command line its iommu=pt: without it the stand-in translates.
ANY_IOMMU = ["pt", "off", "translated"]


@dataclass(frozen=True, slots=True)
class Played:
    """How a play ended. changed: tasks that changed something; reasons: for a reboot."""

    ok: bool
    changed: int
    reasons: list[str]
    text: str


@pytest.fixture(scope="module")
def bare_home(lab_home: Path) -> Iterator[None]:
    """A lab whose lab01 has cards and no driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        lab.up(1, gpus="bare")
        yield
        lab.down()


@pytest.fixture
def host(bare_home: None, own_lab: Path) -> LabHost:
    """lab01."""
    return lab.up(1)[0]


@pytest.fixture
def play(host: LabHost, own_lab: Path, tmp_path: Path) -> Callable[..., Played]:
    """Apply layers of a lock to lab01, with the differences given, as `provision` does."""

    def run(lock: str, *layers: str, check: bool = False, **differences: Any) -> Played:
        variables = {**role_variables(load(lock, own_lab / "inventory")), **differences}
        book, given = tmp_path / "play.yml", tmp_path / "given.json"
        book.write_text(PLAY)
        given.write_text(json.dumps({**variables, "aerie_layers": layers}))
        argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(own_lab / "inventory/hosts.yml")]
        argv += [str(book), "-e", f"@{given}", *(["--check"] if check else [])]
        root = repository()
        environment = {**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        environment["ANSIBLE_ROLES_PATH"] = str(root / "roles")
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900, env=environment)
        text = done.stdout + done.stderr
        recap = re.search(r"changed=(\d+)", text)
        reasons = re.search(r"REASONS=([\w+/=]+)", text)
        assert recap is not None, text
        return Played(
            done.returncode == 0, int(recap[1]), json.loads(_decoded(reasons[1])) if reasons else [], text[-6000:]
        )

    return run


def _decoded(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


def _state(host: LabHost, said: Said) -> Mapping[str, str]:
    """What "nothing was changed" is about: packages, apt's configuration, modules' options, units."""
    folders = ["/etc/apt", "/etc/modprobe.d", "/etc/systemd/system", "/usr/local"]
    files = "find " + " ".join(folders) + " -type f -exec sha256sum {} + ; find " + " ".join(folders) + " -type l"
    return {
        "packages": said(host, "dpkg-query", "--show", "--showformat", "${Package} ${Version} ${db:Status-Abbrev}\n"),
        "files": said(host, "sh", "-c", files),
        "audit": said(host, "dpkg", "--audit"),
    }


def _driver(host: LabHost) -> str:
    done = host.ssh(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return " ".join(sorted(set(done.stdout.decode().split()))) if done.returncode == 0 else f"exit {done.returncode}"


def test_check_mode_passes_on_a_bare_host_and_says_what_it_cannot_know(
    host: LabHost, play: Callable[..., Played], said: Said
) -> None:
    before = _state(host, said)
    seen = play("lab", "driver", "interconnect", "cuda", check=True)
    assert seen.ok, seen.text
    assert "to be resolved after the repository is added: nvidia-driver-pinning-590.44.01, nvidia-open" in seen.text
    assert _state(host, said) == before


WRONG = {
    "gone": ("driver.repository-wrong", "Connection refused"),
    "bad-hash": ("driver.repository-wrong", "Hash Sum mismatch|unexpected size"),
    "rotated-key": ("driver.repository-wrong", "Missing key|NO_PUBKEY"),
}


@pytest.mark.parametrize("mode", WRONG)
def test_a_repository_that_went_wrong_changes_nothing(
    mode: str, host: LabHost, play: Callable[..., Played], said: Said
) -> None:
    before = _state(host, said)
    lab.repository_mode(mode)
    try:
        seen = play("lab", "driver")
    finally:
        lab.repository_mode("normal")
    finding, words = WRONG[mode]
    assert not seen.ok
    assert finding in seen.text and re.search(words, seen.text), seen.text
    assert "Nothing was changed" in seen.text
    assert _state(host, said) == before


def test_a_bare_host_gets_driver_and_toolkit_with_one_reason_to_reboot(
    host: LabHost, play: Callable[..., Played], said: Said, reboot: Callable[..., None]
) -> None:
    # What NVIDIA's keyring package leaves: a second source of the address, with another key.
    uri = role_variables(load("lab", host.state / "inventory"))["driver_repository"]["uri"]
    other = f"deb [signed-by=/usr/share/keyrings/other.gpg] {uri} /\n"
    host.ssh(["tee", "/etc/apt/sources.list.d/cuda.list"], stdin=other.encode())
    seen = play("lab", "driver", "interconnect", "cuda", interconnect_iommu=ANY_IOMMU)
    assert seen.ok, seen.text
    assert [reason.split(":")[0] for reason in seen.reasons] == ["driver.not-loaded"]
    assert said(host, "cat", "/etc/apt/sources.list.d/cuda.list") == ""
    reboot(host)
    assert _driver(host) == "590.44.01"
    assert said(host, "cat", "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") == "Y"
    assert "V13.1.80" in said(host, "sh", "-c", "nvcc --version")
    again = play("lab", "driver", "interconnect", "cuda", interconnect_iommu=ANY_IOMMU)
    assert again.ok and again.changed == 0 and again.reasons == [], again.text


def test_a_driver_of_the_runfile_is_refused(host: LabHost, play: Callable[..., Played], said: Said) -> None:
    said(host, "touch", "/usr/bin/nvidia-uninstall")
    before = _state(host, said)
    seen = play("lab-next", "driver")
    said(host, "rm", "/usr/bin/nvidia-uninstall")
    assert not seen.ok and "driver.runfile: /usr/bin/nvidia-uninstall" in seen.text, seen.text
    assert _state(host, said) == before


def test_programs_on_the_gpus_stop_a_change_of_driver(host: LabHost, play: Callable[..., Played], said: Said) -> None:
    # The stand-in's nodes cannot be opened, so a file of a card's name takes the place of one.
    said(host, "sh", "-c", "rm /dev/nvidia0; touch /dev/nvidia0")
    said(host, "systemd-run", "--unit=trainer", "sh", "-c", "exec 3</dev/nvidia0; exec sleep 600")
    before = _state(host, said)
    seen = play("lab-next", "driver")
    said(host, "systemctl", "stop", "trainer")
    assert not seen.ok and re.search(r"GPUs in use: \d+ sleep;", seen.text), seen.text
    assert _state(host, said) == before


def test_a_module_that_does_not_build_is_undone_and_its_log_shown(
    host: LabHost, play: Callable[..., Played], said: Said
) -> None:
    host.ssh(["tee", "/etc/lab/dkms-fail"], stdin=b"590.48.01\n")
    before = _state(host, said)
    seen = play("lab-next", "driver")
    said(host, "rm", "/etc/lab/dkms-fail")
    assert not seen.ok and "driver.module-missing" in seen.text, seen.text
    assert "vm_flags_set" in seen.text
    after = _state(host, said)
    assert after["audit"] == ""
    assert [line for line in after["packages"].splitlines() if "nvidia" in line and " ii" in line] == [
        line for line in before["packages"].splitlines() if "nvidia" in line and " ii" in line
    ]
    assert _driver(host) == "590.44.01"


def test_an_upgrade_waits_for_another_package_manager(
    host: LabHost, play: Callable[..., Played], said: Said, reboot: Callable[..., None]
) -> None:
    hold = (
        "import fcntl, time; file = open('/var/lib/dpkg/lock-frontend', 'w'); "
        "fcntl.lockf(file, fcntl.LOCK_EX); time.sleep({})"
    )
    said(host, "systemd-run", "--unit=other-apt", "python3", "-c", hold.format(600))
    refused = play("lab-next", "driver", driver_lock_timeout_s=3)
    assert not refused.ok and re.search(r"base\.apt-locked.*held by process \d+ \(python3\)", refused.text), (
        refused.text
    )
    said(host, "systemctl", "stop", "other-apt")
    said(host, "systemd-run", "--unit=other-apt", "python3", "-c", hold.format(60))
    seen = play("lab-next", "driver", "cuda")
    assert seen.ok, seen.text
    assert [reason.split(":")[0] for reason in seen.reasons] == ["driver.version-mismatch"]
    reboot(host)
    assert _driver(host) == "590.48.01"
    assert "V13.1.115" in said(host, "sh", "-c", "nvcc --version")
    again = play("lab-next", "driver", "cuda")
    assert again.ok and again.changed == 0 and again.reasons == [], again.text


def test_the_way_back_needs_no_network_and_takes_the_compiler_along(
    host: LabHost, play: Callable[..., Played], said: Said, reboot: Callable[..., None]
) -> None:
    lab.repository_mode("gone")
    try:
        seen = play("lab", "driver", "cuda", driver_offline_archives=STORE, cuda_offline_archives=STORE)
    finally:
        lab.repository_mode("normal")
    assert seen.ok, seen.text
    reboot(host)
    assert _driver(host) == "590.44.01"
    assert "V13.1.80" in said(host, "sh", "-c", "nvcc --version")
    # Nothing of the other version is left that would pull it up again.
    said(host, "apt-get", "update")
    assert "nvidia-open" not in said(host, "apt-get", "--simulate", "dist-upgrade")


def test_access_control_is_cleared_now_and_at_the_next_boot(
    host: LabHost, play: Callable[..., Played], said: Said, reboot: Callable[..., None]
) -> None:
    program = (repository() / "roles/interconnect/files/acs.py").read_bytes()

    def bits() -> set[int]:
        shown = host.ssh(["python3", "-", "show"], stdin=program).stdout
        return set(json.loads(shown)["acs"].values())

    lab.gpu("lab01", "acs-on")
    assert bits() not in ({0}, set())
    translating = play("lab", "interconnect")
    assert not translating.ok and "interconnect.iommu-translating: 0000:06:00.0" in translating.text, translating.text
    seen = play("lab", "interconnect", interconnect_iommu=ANY_IOMMU)
    assert seen.ok and seen.changed == 0, seen.text
    assert bits() == {0}
    reboot(host)
    assert said(host, "systemctl", "is-active", "aerie-acs") == "active"
    lab.gpu("lab01", "acs-on")  # as the firmware does at a boot; the stand-in does not
    said(host, "systemctl", "restart", "aerie-acs")
    assert bits() == {0}
    left = play("lab", "interconnect", interconnect_acs="any", interconnect_iommu=ANY_IOMMU)
    assert left.ok, left.text
    assert host.ssh(["systemctl", "cat", "aerie-acs"]).returncode != 0
