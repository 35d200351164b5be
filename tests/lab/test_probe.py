"""Snapshots of real hosts, and every way not to get one, each told apart."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import lab
from aerie import inventory, remote
from aerie.errors import AerieError
from aerie.inventory import Host
from aerie.remote import Unprobed, Unreachable
from aerie.snapshot import Limits, Unknown

pytestmark = pytest.mark.lab


@pytest.fixture
def host(lab_host: lab.LabHost) -> Host:
    """lab01 as the inventory has it."""
    return inventory.host(lab_host.name, lab_host.inventory)


def as_user(host: Host, user: str) -> Host:
    return replace(host, user=user, variables={**host.variables, "ansible_user": user})


@pytest.fixture
def operator(lab_host: lab.LabHost, host: Host, said: Callable[..., str]) -> Iterator[Host]:
    """lab01 through a user of its own that may not become root."""
    said(lab_host, "useradd", "--create-home", "--shell", "/bin/bash", "tester")
    said(lab_host, "sh", "-c", "mkdir ~tester/.ssh && cp ~/.ssh/authorized_keys ~tester/.ssh/")
    said(lab_host, "chown", "-R", "tester:", "/home/tester/.ssh")
    yield as_user(host, "tester")
    said(lab_host, "sh", "-c", "rm -f /etc/sudoers.d/tester /etc/security/limits.d/t.conf")
    lab_host.ssh(["userdel", "--remove", "--force", "tester"])


def known(host: Host) -> list[str]:
    """The fields that the probe could not read."""
    found = remote.probe(host)
    areas = ("machine", "base", "kernel", "driver", "interconnect", "engine")
    return [
        f"{area}.{name}: {value.unknown}"
        for area in areas
        for name in type(getattr(found, area)).__dataclass_fields__
        if isinstance(value := getattr(getattr(found, area), name), Unknown)
    ]


def test_a_snapshot_of_a_host(host: Host) -> None:
    started = time.monotonic()
    found = remote.probe(host)
    assert found.machine.hostname == host.name
    assert found.machine.container == "systemd-nspawn"
    assert found.is_root
    assert found.os.id in ("debian", "ubuntu")
    assert found.base.packages["openssh-server"].status == "ii"
    assert found.services["ssh"].active == "active"
    assert found.receipt is None
    assert found.probe_s < time.monotonic() - started


def test_a_plain_host_leaves_little_unknown(host: Host) -> None:
    about = {line.split(":")[0] for line in known(host)}
    # It has no NVML, and no kernel log of its own.
    assert about <= {"interconnect.p2p", "interconnect.topology", "interconnect.io_page_faults"}


def test_the_probe_changes_nothing(host: Host, lab_host: lab.LabHost, said: Callable[..., str]) -> None:
    remote.probe(host)  # what a first login makes (its session's folders) is not the probe's
    # What a host writes lies in the layer above the base image; the journal is sshd's doing.
    listing = ["find", "/", "-xdev", "-newer", "/run/before", "-not", "-path", "/var/log/*", "-not", "-path", "/run*"]
    said(lab_host, "touch", "/run/before")
    remote.probe(host)
    assert said(lab_host, *listing) == ""


def test_a_program_and_a_file_on_a_host(host: Host, lab_host: lab.LabHost, said: Callable[..., str]) -> None:
    content = os.urandom(300_000)
    remote.put(host, "/opt/a folder/$HOME's file", content, 0o600)
    done = remote.run(host, ["stat", "--format=%a %s %U", "/opt/a folder/$HOME's file"])
    assert (done.exit_code, done.stdout) == (0, "600 300000 root\n")
    assert remote.run(host, ["sh", "-c", "cat | wc -c; exit 7"], stdin=content).exit_code == 7


def test_sudo_makes_root_of_a_user_who_may(operator: Host, lab_host: lab.LabHost, said: Callable[..., str]) -> None:
    said(lab_host, "sh", "-c", "echo 'tester ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/tester")
    said(lab_host, "sh", "-c", "echo 'tester soft nofile 777' > /etc/security/limits.d/t.conf")
    found = remote.probe(operator)
    assert found.is_root
    # Those of the operator's session, not of what sudo made of it.
    assert isinstance(found.base.session_limits, Limits)
    assert found.base.session_limits.nofile == 777
    assert remote.run(operator, ["id", "-un"]).stdout == "tester\n"
    assert remote.run(operator, ["id", "-un"], sudo=True).stdout == "root\n"
    remote.put(operator, "/etc/put-by-tester", b"x", sudo=True)
    assert said(lab_host, "stat", "--format=%U", "/etc/put-by-tester") == "root"


def test_no_sudo(operator: Host) -> None:
    with pytest.raises(Unprobed, match="expected sudo without a password") as raised:
        remote.probe(operator)
    assert raised.value.cause == "sudo"
    assert "NOPASSWD" in raised.value.remedy


def test_without_become_what_needs_root_is_unknown(operator: Host) -> None:
    user = replace(operator, variables={**operator.variables, "ansible_become": False})
    found = remote.probe(user)
    assert not found.is_root
    assert [line for line in known(user) if "needs root" in line] != []


def test_no_python(host: Host, lab_host: lab.LabHost, said: Callable[..., str]) -> None:
    said(lab_host, "sh", "-c", "mv /usr/bin/python3 /usr/bin/away")
    try:
        with pytest.raises(Unprobed) as raised:
            remote.probe(replace(host, variables={**host.variables, "ansible_python_interpreter": "auto"}))
        with pytest.raises(Unprobed) as named:
            remote.probe(host)
    finally:
        said(lab_host, "mv", "/usr/bin/away", "/usr/bin/python3")
    assert raised.value.cause == named.value.cause == "python"
    assert "apt-get install python3" in raised.value.remedy


def test_a_wrong_user(host: Host) -> None:
    with pytest.raises(Unreachable, match=r"nobody-here@.* refuses the login") as raised:
        remote.probe(as_user(host, "nobody-here"))
    assert raised.value.cause == "login"


def test_a_key_file_that_is_not_there(host: Host) -> None:
    variables = {**host.variables, "ansible_ssh_private_key_file": "/nonexistent/key"}
    with pytest.raises(Unreachable, match="/nonexistent/key") as raised:
        remote.probe(replace(host, variables=variables))
    assert raised.value.cause == "login"


def with_known_hosts(host: Host, path: str) -> Host:
    return replace(host, variables={**host.variables, "ansible_ssh_common_args": f"-o UserKnownHostsFile={path}"})


def test_another_host_key_than_the_known_one(host: Host, lab_host: lab.LabHost, tmp_path) -> None:
    kind, _key = (lab_host.state / "id_ed25519.pub").read_text().split()[:2]
    (tmp_path / "known_hosts").write_text(f"{host.address} {kind} {_key}\n")
    with pytest.raises(Unreachable) as raised:
        remote.probe(with_known_hosts(host, str(tmp_path / "known_hosts")))
    assert raised.value.cause == "host-key"
    assert "shows the key SHA256:" in str(raised.value.seen)
    assert f"ssh-keygen -R {host.address}" in raised.value.remedy


def test_a_host_key_that_nobody_vouched_for(host: Host, tmp_path) -> None:
    (tmp_path / "known_hosts").write_text("")
    with pytest.raises(Unreachable, match="nobody vouched for") as raised:
        remote.probe(with_known_hosts(host, str(tmp_path / "known_hosts")))
    assert raised.value.cause == "host-key"
    assert (tmp_path / "known_hosts").read_text() == "", "it must not be added"


def test_a_key_known_under_an_alias(host: Host, lab_host: lab.LabHost, tmp_path) -> None:
    key = next(line for line in (lab_host.state / "known_hosts").read_text().splitlines() if host.name in line)
    (tmp_path / "known_hosts").write_text("the-alias " + key.split(" ", 1)[1] + "\n")
    arguments = f"-o UserKnownHostsFile={tmp_path}/known_hosts -o HostKeyAlias=the-alias"
    aliased = replace(host, variables={**host.variables, "ansible_ssh_common_args": arguments})
    assert remote.probe(aliased).machine.hostname == host.name


def test_an_address_where_nobody_is(host: Host) -> None:
    # A network without that neighbour says "no route" after some seconds; a shorter limit says "no answer".
    with pytest.raises(Unreachable) as raised:
        remote.probe(replace(host, address="10.77.0.99"), connect_timeout_s=1)
    assert raised.value.cause == "timeout"
    assert "no answer from root@10.77.0.99:22 within 1 s" in str(raised.value)


def test_many_hosts_and_each_ones_own_trouble(host: Host) -> None:
    gone = replace(host, name="gone", address="10.77.0.99")
    wrong = replace(as_user(host, "nobody-here"), name="wrong")
    found = remote.probe_all([gone, host, wrong], connect_timeout_s=30)  # a busy host takes seconds for a login
    assert list(found) == ["gone", host.name, "wrong"]
    causes = [getattr(each, "cause", "snapshot") for each in found.values()]
    assert causes in (["route", "snapshot", "login"], ["timeout", "snapshot", "login"])


def test_a_program_that_does_not_end(host: Host) -> None:
    with pytest.raises(AerieError, match=r"no end after 1 s"):
        remote.run(host, ["sleep", "60"], timeout_s=1)


def test_a_host_that_goes_down_meanwhile(host: Host, lab_host: lab.LabHost, said: Callable[..., str]) -> None:
    result = remote.run(host, ["sh", "-c", "kill -9 $PPID; sleep 30"], timeout_s=20)
    assert result.exit_code == -1


def test_through_a_jump_host(host: Host, own_lab, tmp_path, monkeypatch) -> None:
    second = lab.up(2)[1]
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    # As with ssh, the jump host's user, key and known hosts come from ssh's own configuration.
    access = f"User root\n  IdentityFile {own_lab}/id_ed25519\n  UserKnownHostsFile {own_lab}/known_hosts\n"
    (tmp_path / ".ssh/config").write_text(f"Host {host.address}\n  {access}")
    behind = inventory.host(second.name, second.inventory)
    arguments = f"{behind.variables['ansible_ssh_common_args']} -o ProxyJump={host.address}"
    jumping = replace(behind, variables={**behind.variables, "ansible_ssh_common_args": arguments})
    came_from = remote.run(jumping, ["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[0]
    assert came_from == host.address
    assert remote.probe(jumping).machine.hostname == second.name
    (tmp_path / ".ssh/config").write_text(f"Host {host.address}\n  {access.replace('known_hosts', 'nothing')}")
    with pytest.raises(Unreachable, match=f"root@{host.address}:22 has a key that nobody vouched for"):
        remote.probe(jumping)
