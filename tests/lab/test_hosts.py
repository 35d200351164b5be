"""A lab host is a real one: sshd, systemd, apt, reboot, limits, neighbours."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lab
from lab import LabHost

pytestmark = pytest.mark.lab

Said = Callable[..., str]
GREEDY = "block = bytearray({mib} << 20); print(len(block) >> 20)"


def test_ssh_answers_and_its_host_key_is_the_known_one(lab_host: LabHost, said: Said) -> None:
    assert said(lab_host, "hostname") == "lab01"


def test_ssh_refuses_a_host_with_another_key(lab_host: LabHost, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    other = (tmp_path / "key.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"lab01 {other}")
    config = lab_host.ssh_config.read_text().replace(str(lab_host.state / "known_hosts"), str(tmp_path / "known_hosts"))
    (tmp_path / "config").write_text(config)
    done = subprocess.run(
        ["ssh", "-F", tmp_path / "config", "lab01", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_systemd_runs_without_failed_units(lab_host: LabHost, said: Said) -> None:
    assert said(lab_host, "systemctl", "is-system-running", "--wait") == "running"
    assert said(lab_host, "systemctl", "--failed", "--no-legend") == ""


def test_ansible_reaches_the_hosts_of_the_inventory(lab_host: LabHost, tmp_path: Path) -> None:
    pytest.importorskip("ansible")
    # `ansible` wants one of these variables set to a UTF-8 locale, and a home of its own keeps the tester's clean.
    environment = {**os.environ, "ANSIBLE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "adhoc", "-i", lab_host.inventory, "-m", "ping", "lab"],
        capture_output=True, text=True, check=False, env=environment, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"ping": "pong"' in done.stdout


def test_a_reboot_is_a_new_boot(lab_host: LabHost, said: Said, reboot: Callable[..., None]) -> None:
    said(lab_host, "touch", "/root/kept")
    begun = time.monotonic()
    reboot(lab_host)
    uptime_s = float(said(lab_host, "cat", "/proc/uptime").split()[0])
    assert uptime_s <= time.monotonic() - begun + 1  # the boot's offset is in whole seconds
    assert said(lab_host, "ls", "/root") == "kept"


def test_apt_installs_a_package(lab_host: LabHost, said: Said) -> None:
    update = lab_host.ssh(["apt-get", "-o", "APT::Update::Error-Mode=any", "update"], timeout_s=120)
    if update.returncode != 0:
        pytest.skip(f"the archive is not reachable: {update.stderr.decode().strip()}")
    said(lab_host, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "hello", timeout_s=120)
    assert said(lab_host, "hello") == "Hello, world!"


def test_a_units_memory_limit_is_kept(lab_host: LabHost, said: Said) -> None:
    unit = ["systemd-run", "--wait", "--collect", "--quiet", "--pipe"]
    greedy = ["python3", "-c", GREEDY.format(mib=200)]
    assert said(lab_host, *unit, *greedy) == "200"
    assert lab_host.ssh([*unit, "--property=MemoryMax=50M", *greedy]).returncode != 0


def test_a_hosts_memory_limit_is_kept(own_lab: Path) -> None:
    (host,) = lab.up(1, memory_bytes=512 << 20)
    assert host.ssh(["python3", "-c", GREEDY.format(mib=200)]).stdout == b"200\n"
    assert host.ssh(["python3", "-c", GREEDY.format(mib=800)]).returncode == 255  # ssh's word for "killed by a signal"
    lab.up(1)
    assert host.ssh(["python3", "-c", GREEDY.format(mib=800)]).stdout == b"800\n"


def test_sysctls_of_the_machine_are_not_the_hosts(lab_host: LabHost, said: Said) -> None:
    machine = Path("/proc/sys/vm/swappiness").read_text()
    said(lab_host, "sysctl", "-w", "vm.swappiness=11", "net.ipv4.ip_forward=1")
    assert said(lab_host, "cat", "/proc/sys/vm/swappiness") == "11"
    assert Path("/proc/sys/vm/swappiness").read_text() == machine
    said(lab_host, "sysctl", "--system")


def test_two_hosts_reach_each_other(own_lab: Path, said: Said) -> None:
    one, two = lab.up(2)
    said(one, "ping", "-c", "1", "-W", "5", two.name)
    said(two, "python3", "-c", f"import socket; socket.create_connection(({json.dumps(one.name)}, 22), timeout=5)")
    assert said(one, "cat", "/etc/machine-id") != said(two, "cat", "/etc/machine-id")
