"""What goes wrong while hosts are provisioned: each host is reported as itself, and the same command goes on."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import lab
from aerie import apply
from aerie.lock import load, role_variables
from lab import LabHost
from roles import applied

pytestmark = pytest.mark.lab

REPOSITORY = Path(__file__).resolve().parents[2]
Said = Callable[..., str]
Eventually = Callable[..., None]
HOLD = """
import fcntl, time
with open("/var/lib/dpkg/lock-frontend", "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    time.sleep(600)
"""
SLOW = """\
#!/bin/sh
sleep 2
exec /usr/bin/python3 "$@"
"""


@pytest.fixture(scope="module")
def hosts(lab_home: Path) -> Iterator[tuple[LabHost, ...]]:
    """Two fresh hosts without cards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        yield lab.up(2)
        lab.down()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a controller of a test puts its temporary files; a short path, for sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        yield Path(name)


@pytest.fixture
def start(hosts: tuple[LabHost, ...], lab_home: Path, folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a task as an operator would, against the lab's inventory or another one."""

    def run(*arguments: str, inventory: Path = hosts[0].inventory) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [Path(sys.executable).parent / "invoke", *arguments, "--json", "--inventory", inventory],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
            env={**os.environ, "XDG_STATE_HOME": str(lab_home), "TMPDIR": str(folder)},
        )  # fmt: skip

    return run


@pytest.fixture
def invoke(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run a task to its end; its exit code and the last line of its JSON."""

    def run(*arguments: str, **options: Any) -> tuple[int, dict[str, Any]]:
        with start(*arguments, **options) as process:
            out, err = process.communicate(timeout=300)
        assert '"hosts"' in out, f"{arguments}: exit {process.returncode}\n{err}"
        return process.returncode, json.loads(out.strip().splitlines()[-1])

    return run


def rows(host: LabHost) -> dict[str, dict[str, Any]]:
    """The lab's inventory: variables by host."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(host.inventory.read_text())["all"]["children"]["lab"]["hosts"]
    return found


def inventory_of(path: Path, host: LabHost, rows: dict[str, dict[str, Any]]) -> Path:
    """An inventory of these hosts, with the lab's locks beside it."""
    path.mkdir()
    (path / "locks").symlink_to(host.inventory.parent / "locks")
    (path / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": {"aerie_lock": "lab"}, "hosts": rows}}))
    return path / "hosts.yml"


def states(outcome: dict[str, Any]) -> dict[str, str]:
    return {one["host"]: one["state"] for one in outcome["hosts"]}


def errors(outcome: dict[str, Any]) -> dict[str, str]:
    return {one["host"]: one["error"] for one in outcome["hosts"]}


@pytest.fixture
def mixed(hosts: tuple[LabHost, ...], tmp_path: Path, said: Said) -> Iterator[Path]:
    """An inventory of a good host and of every kind of bad one."""
    first, second = hosts
    said(second, "sh", "-c", "useradd --create-home --shell /bin/bash tester; cp -r ~/.ssh ~tester/")
    said(second, "chown", "-R", "tester:", "/home/tester/.ssh")
    first.ssh(["tee", "/usr/local/bin/slow"], stdin=SLOW.encode())
    said(first, "chmod", "755", "/usr/local/bin/slow")
    kind, key = (first.state / "id_ed25519.pub").read_text().split()[:2]
    (tmp_path / "known_hosts").write_text(f"{first.address} {kind} {key}\n")
    good, other = rows(first)["lab01"], rows(first)["lab02"]
    entries = {
        "slow": {**good, "ansible_python_interpreter": "/usr/local/bin/slow"},
        "good": {**other},
        "nosudo": {**other, "ansible_user": "tester"},
        "stranger": {**other, "ansible_user": "nobody-here"},
        "impostor": {**good, "ansible_ssh_common_args": f"-o UserKnownHostsFile={tmp_path}/known_hosts"},
        "down": {**good, "ansible_host": "10.77.0.99"},
    }
    yield inventory_of(tmp_path / "mixed", first, entries)
    said(second, "userdel", "--remove", "--force", "tester")


def test_each_host_is_reported_as_itself_and_the_others_are_done(mixed: Path, invoke: Any) -> None:
    code, outcome = invoke("provision", "--host", "all", "--layer", "engine", "--yes", inventory=mixed)
    assert code == 1
    assert states(outcome) == {
        "slow": "done", "good": "done",
        "nosudo": "failed", "stranger": "unreachable", "impostor": "unreachable", "down": "unreachable",
    }  # fmt: skip
    said = errors(outcome)
    assert "expected sudo without a password" in said["nosudo"]
    assert "refuses the login" in said["stranger"] and "ansible_user" in said["stranger"]
    assert "shows the key SHA256:" in said["impostor"] and "ssh-keygen -R" in said["impostor"]
    assert "10.77.0.99" in said["down"]
    assert (said["slow"], said["good"]) == ("", "")
    # Those of the failed that no verification could ask, and those that miss what other layers bring.
    code, plan = invoke("plan", "--host", "@failed", inventory=mixed)
    assert {"nosudo", "stranger", "impostor", "down"} <= {one["host"] for one in plan["hosts"]}


def test_when_too_many_failed_the_others_are_stopped_and_told_so(
    hosts: tuple[LabHost, ...], invoke: Any, tmp_path: Path
) -> None:
    broken = {**rows(hosts[0])["lab01"], "base_packages": ["no-such-package"]}
    inventory = inventory_of(tmp_path / "two", hosts[0], {"broken": broken, "fine": rows(hosts[0])["lab02"]})
    arguments = ("provision", "--host", "all", "--layer", "base", "--yes")
    code, outcome = invoke(*arguments, "--max-fail-percentage", "0", inventory=inventory)
    assert (code, states(outcome)) == (1, {"broken": "failed", "fine": "failed"})
    assert "Unable to locate package no-such-package" in errors(outcome)["broken"]
    assert "--max-fail-percentage" in errors(outcome)["fine"]
    code, outcome = invoke(*arguments, inventory=inventory)
    assert (code, states(outcome)) == (1, {"broken": "failed", "fine": "done"})


def test_a_play_refuses_a_host_whose_key_nobody_vouched_for(hosts: tuple[LabHost, ...], tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    row = {**rows(hosts[0])["lab01"], "ansible_ssh_common_args": f"-o UserKnownHostsFile={tmp_path}/known_hosts"}
    inventory = inventory_of(tmp_path / "one", hosts[0], {"lab01": row})
    told = apply.HostInput(host="lab01", layers=("engine",), group="g", group_variables={}, variables={})
    (result,) = apply.play("provision", [told], inventory=inventory, variables={}, forks=1).hosts
    assert (result.state, "Host key verification failed" in result.error) == ("unreachable", True), result.error
    assert (tmp_path / "known_hosts").read_text() == ""


def _tree(pid: int) -> set[int]:
    """The process and all below it."""
    below = subprocess.run(["pgrep", "--parent", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return {pid}.union(*(_tree(int(one)) for one in below))


def _is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def apt_held(hosts: tuple[LabHost, ...], said: Said) -> Iterator[Callable[[], None]]:
    """lab01 lacks a package, and somebody has apt's lock there until the function is called."""
    said(hosts[0], "sh", "-c", "dpkg --remove jq; rm -f /etc/sysctl.d/90-aerie.conf; sysctl -w vm.swappiness=60")
    said(hosts[0], "systemd-run", "--unit=other-apt", "python3", "-c", HOLD)

    def let_go() -> None:
        hosts[0].ssh(["systemctl", "stop", "other-apt"])

    yield let_go
    let_go()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_a_controller_killed_in_mid_play_is_followed_by_one_that_completes(
    how: signal.Signals, hosts: tuple[LabHost, ...], start: Any, invoke: Any, said: Said, eventually: Eventually,
    folder: Path, apt_held: Callable[[], None],
) -> None:  # fmt: skip
    arguments = ("provision", "--host", "lab01", "--layer", "base", "--yes")
    with start(*arguments) as controller:
        waits = ["pgrep", "-f", "python3 -I - [1-9]"]
        eventually("the play waits for apt", lambda: hosts[0].ssh(waits).returncode == 0, within_s=180)
        processes = _tree(controller.pid)
        os.kill(controller.pid, how)
        _, err = controller.communicate(timeout=300)
    if how is signal.SIGTERM:
        assert controller.returncode == 128 + how, err
        assert "the same command goes on where this one stopped" in err
        assert list(folder.glob("aerie-ssh-*")) == []
    else:
        apt_held()  # what waited on the host ends, and with it who waited for that here
    eventually("no process of it is left", lambda: not any(map(_is_alive, processes)))
    apt_held()
    _, outcome = invoke(*arguments)
    assert states(outcome) == {"lab01": "done"}, outcome
    assert said(hosts[0], "sh", "-c", "jq --version; sysctl -n vm.swappiness").split()[-1] == "10"


def base_of(host: LabHost) -> dict[str, Any]:
    """Variables of the role base as the lab's lock has them, with a package that has a folder of its own."""
    own = role_variables(load("lab", host.inventory.parent))
    return {**{key: value for key, value in own.items() if key.startswith("base_")}, "base_packages": ["figlet"]}


@contextmanager
def full(host: LabHost, said: Said, folder: str) -> Iterator[None]:
    """This folder of the host has room for 64 KiB."""
    said(host, "sh", "-c", f"mkdir -p {folder} && mount -t tmpfs -o size=64k tmpfs {folder}")
    try:
        yield
    finally:
        said(host, "umount", folder)


def test_no_room_for_archives_changes_nothing(hosts: tuple[LabHost, ...], said: Said) -> None:
    said(hosts[1], "sh", "-c", "dpkg -l >/run/before")
    with full(hosts[1], said, "/var/cache/apt/archives"):
        result = applied(hosts[1], "base", **base_of(hosts[1]))
    assert result.state == "failed"
    assert "You don't have enough free space in /var/cache/apt/archives/" in result.error
    said(hosts[1], "sh", "-c", "dpkg -l | cmp - /run/before")


def test_a_disk_that_gets_full_is_named_and_with_room_the_same_play_completes(
    hosts: tuple[LabHost, ...], said: Said
) -> None:
    with full(hosts[1], said, "/usr/share/figlet"):
        result = applied(hosts[1], "base", **base_of(hosts[1]))
    assert result.state == "failed"
    assert "No space left on device" in result.error
    result = applied(hosts[1], "base", **base_of(hosts[1]))
    assert (result.state, result.error) == ("ok", "")
    assert said(hosts[1], "sh", "-c", "dpkg --audit; figlet -v | head -2").startswith("FIGlet")


def test_a_host_that_does_not_come_back_from_its_reboot_is_told_and_the_next_run_completes(
    hosts: tuple[LabHost, ...], invoke: Any, said: Said, eventually: Eventually, tmp_path: Path
) -> None:
    late, fine = rows(hosts[0])["lab01"], rows(hosts[0])["lab02"]
    # After its boot the host answers when the play has long given up.
    drop_in = "/etc/systemd/system/ssh.service.d/late.conf"
    wait = "[Service]\nExecStartPre=/bin/sleep 40\nTimeoutStartSec=120\n"
    said(hosts[0], "sh", "-c", f"mkdir -p {drop_in.rpartition('/')[0]}; printf %b {shlex.quote(wait)} >{drop_in}")
    boots = [said(host, "cat", "/proc/sys/kernel/random/boot_id") for host in hosts]
    inventory = inventory_of(tmp_path / "two", hosts[0], {"late": {**late, "aerie_reboot_timeout_s": 5}, "fine": fine})
    arguments = ("provision", "--host", "all", "--layer", "kernel", "--yes")
    code, pending = invoke(*arguments, "--no-reboot", inventory=inventory)
    assert (code, set(states(pending).values())) == (5, {"reboot-pending"}), pending
    assert "kernel.cmdline-drift" in errors(pending)["late"]
    assert [said(host, "cat", "/proc/sys/kernel/random/boot_id") for host in hosts] == boots
    code, outcome = invoke(*arguments, inventory=inventory)
    assert (code, states(outcome)) == (1, {"late": "failed", "fine": "done"}), outcome
    assert "Timed out waiting" in errors(outcome)["late"]
    assert all(one["rebooted"] for one in outcome["hosts"])
    eventually("the host answers again", lambda: hosts[0].ssh(["true"]).returncode == 0, within_s=120)
    _, outcome = invoke(*arguments, inventory=inventory)
    assert states(outcome) == {"late": "unchanged", "fine": "unchanged"}, outcome
