"""Role base on a host."""

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab import LabHost
from roles import applied, limits

pytestmark = pytest.mark.lab

Said = Callable[..., str]

VARIABLES: dict[str, Any] = {
    "base_packages": ["jq"],
    "base_sysctl": {"vm.swappiness": "10", "net.ipv4.ip_forward": "1"},
    **limits(),
}
HOLD = """
import fcntl, time
with open("/var/lib/dpkg/lock-frontend", "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep({})
"""


@contextmanager
def lock_held(host: LabHost, seconds: float) -> Iterator[None]:
    """Someone on the host has apt's lock, for so long or until the end of the block."""
    argv = ["ssh", "-F", str(host.ssh_config), host.name, shlex.join(["python3", "-c", HOLD.format(seconds)])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            host.ssh(["pkill", "-f", "lock-frontend"])


def test_a_bare_host_can_be_checked_and_does_not_change(lab_host: LabHost, said: Said) -> None:
    said(lab_host, "sh", "-c", "apt-get remove -y -q jq 2>&1; rm -f /etc/sysctl.d/90-aerie.conf")
    result = applied(lab_host, "base", check=True, **VARIABLES)
    assert (result.state, result.error) == ("ok", "")
    assert said(lab_host, "sh", "-c", "ls /etc/sysctl.d/90-aerie.conf /usr/bin/jq 2>/dev/null || true") == ""


def test_a_host_is_as_the_role_says_and_a_second_run_changes_nothing(lab_host: LabHost, said: Said) -> None:
    first = applied(lab_host, "base", **VARIABLES)
    assert (first.state, first.error) == ("ok", "")
    assert said(lab_host, "jq", "--version").startswith("jq-")
    assert said(lab_host, "sysctl", "-n", "net.ipv4.ip_forward") == "1"
    blacklist = said(lab_host, "apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
    assert 'Package-Blacklist:: "nvidia";' in blacklist
    assert said(lab_host, "systemd-run", "--pipe", "--wait", "--quiet", "sh", "-c", "ulimit -n") == str(
        VARIABLES["base_nofile"]
    )
    assert said(lab_host, "sh", "-c", "ulimit -n") == str(VARIABLES["base_nofile"])
    second = applied(lab_host, "base", **VARIABLES)
    assert (second.state, second.error, second.changed) == ("ok", "", 0)


def test_a_setting_that_another_tool_changed_comes_back(lab_host: LabHost, said: Said) -> None:
    applied(lab_host, "base", **VARIABLES)
    said(lab_host, "sysctl", "-w", "net.ipv4.ip_forward=0")
    assert applied(lab_host, "base", **VARIABLES).changed == 1
    assert said(lab_host, "sysctl", "-n", "net.ipv4.ip_forward") == "1"


def test_a_setting_that_the_kernel_does_not_have_is_named(lab_host: LabHost) -> None:
    result = applied(lab_host, "base", **{**VARIABLES, "base_sysctl": {"vm.no_such_thing": "1"}})
    assert result.state == "failed"
    assert "no_such_thing" in result.error
    assert "[base.sysctl] in the lock" in result.error


def test_who_holds_apts_lock_is_named_after_the_wait(lab_host: LabHost, said: Said) -> None:
    said(lab_host, "sh", "-c", "apt-get remove -y -q jq 2>&1")
    with lock_held(lab_host, 600):
        result = applied(lab_host, "base", **VARIABLES, base_lock_timeout_s=2)
    assert result.state == "failed"
    assert "python3 (pid " in result.error
    assert "holds /var/lib/dpkg/lock-frontend, for more than 2 s" in result.error
    assert said(lab_host, "sh", "-c", "dpkg --audit; ls /usr/bin/jq 2>/dev/null || true") == ""


def test_a_lock_that_gets_free_is_waited_for(lab_host: LabHost, said: Said) -> None:
    said(lab_host, "sh", "-c", "apt-get remove -y -q jq 2>&1")
    began = time.monotonic()
    with lock_held(lab_host, 15):
        result = applied(lab_host, "base", **VARIABLES)
    assert (result.state, result.error) == ("ok", "")
    assert time.monotonic() - began >= 15
    assert said(lab_host, "jq", "--version").startswith("jq-")


@pytest.fixture
def half_installed(lab_host: LabHost, said: Said) -> Iterator[str]:
    """A package whose configuration fails until /run/mended is there."""
    fields = {"Package": "halfway", "Version": "1", "Architecture": "all", "Maintainer": "t <t@t>", "Description": "t"}
    control = "".join(f"{field}: {value}\n" for field, value in fields.items())
    script = f"""
        set -e
        mkdir -p /tmp/halfway/DEBIAN
        printf %s {shlex.quote(control)} >/tmp/halfway/DEBIAN/control
        printf '#!/bin/sh\\n[ -e /run/mended ]\\n' >/tmp/halfway/DEBIAN/postinst
        chmod 755 /tmp/halfway/DEBIAN/postinst
        rm -f /run/mended
        dpkg-deb --build /tmp/halfway /tmp/halfway.deb >/dev/null
        dpkg -i /tmp/halfway.deb >/dev/null 2>&1 || true
    """
    said(lab_host, "sh", "-c", script)
    yield "halfway"
    said(lab_host, "sh", "-c", "dpkg --purge --force-all halfway 2>&1")


def test_a_half_installed_package_is_finished(lab_host: LabHost, said: Said, half_installed: str) -> None:
    said(lab_host, "touch", "/run/mended")
    result = applied(lab_host, "base", **VARIABLES)
    assert (result.state, result.error) == ("ok", "")
    assert said(lab_host, "dpkg-query", "-W", "-f", "${db:Status-Abbrev}", half_installed) == "ii"


def test_a_package_that_cannot_be_finished_is_named(lab_host: LabHost, half_installed: str) -> None:
    result = applied(lab_host, "base", **VARIABLES)
    assert result.state == "failed"
    assert f"{half_installed} half installed" in result.error
