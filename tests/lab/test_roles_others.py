"""Roles kernel, python, storage and engine on a host."""

import hashlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.paths import repository
from lab import LabHost
from roles import applied
from tests.unit import wheels

pytestmark = pytest.mark.lab

Said = Callable[..., str]


def unchanged(host: LabHost, layer: str, **variables: Any) -> None:
    """A second run ends well and changes nothing."""
    again = applied(host, layer, **variables)
    assert (again.state, again.error, again.changed) == ("ok", "", 0)


@pytest.mark.parametrize("layer", ["kernel", "python", "extensions", "storage", "weights", "engine"])
def test_a_bare_host_can_be_checked(lab_host: LabHost, layer: str) -> None:
    result = applied(lab_host, layer, check=True, storage_min_free_gb=1, kernel_cmdline=["iommu=pt"])
    assert (result.state, result.error) == ("ok", "")


def test_words_reach_the_boot_loader_and_are_a_reason_to_reboot(lab_host: LabHost, said: Said) -> None:
    wanted = {"kernel_cmdline": ["iommu=pt"]}
    first = applied(lab_host, "kernel", **wanted)
    assert (first.state, first.error) == ("ok", "")
    assert first.reboot_reasons == ("kernel.cmdline-drift: iommu=pt takes effect at the next boot",)
    assert " iommu=pt" in said(lab_host, "grep", "-m1", "linux", "/boot/grub/grub.cfg")
    assert "blacklist nouveau" in said(lab_host, "cat", "/etc/modprobe.d/90-aerie-blacklist.conf")
    unchanged(lab_host, "kernel", **wanted)


def kernel_package(host: LabHost, said: Said, name: str, release: str) -> None:
    """Offer a package, in an apt source of the host's own, that brings an image or the headers of a kernel."""
    file = f"lib/modules/{release}/build/Makefile" if "headers" in name else f"boot/vmlinuz-{release}"
    fields = {"Package": name, "Version": "1", "Architecture": "all", "Maintainer": "t <t@t>", "Description": "t"}
    control = "".join(f"{field}: {value}\n" for field, value in fields.items())
    script = f"""
        set -e
        mkdir -p /srv/debs /tmp/{name}/DEBIAN
        cd /tmp/{name}
        printf %s {shlex.quote(control)} >DEBIAN/control
        mkdir -p $(dirname {file})
        touch {file}
        dpkg-deb --build . /srv/debs/{name}.deb >/dev/null
        cd /srv/debs
        for deb in *.deb; do
            dpkg-deb -f $deb
            printf 'Filename: ./%s\\nSize: %s\\n' $deb $(stat -c %s $deb)
            printf 'SHA256: %s\\n\\n' $(sha256sum $deb | cut -d" " -f1)
        done >Packages
        echo 'deb [trusted=yes] file:/srv/debs ./' >/etc/apt/sources.list.d/debs.list
    """
    said(host, "sh", "-c", script)


def test_a_kernel_whose_headers_are_gone_stops_the_role_until_a_newer_one_comes(lab_host: LabHost, said: Said) -> None:
    try:
        kernel_package(lab_host, said, "linux-image-98.1.0-1-generic", "98.1.0-1-generic")
        said(lab_host, "sh", "-c", "apt-get update -q && apt-get install -y -q linux-image-98.1.0-1-generic 2>&1")
        gone = applied(lab_host, "kernel")
        assert gone.state == "failed"
        assert "linux-headers-98.1.0-1-generic is in no apt source" in gone.error
        assert "[kernel] image in the lock" in gone.error
        kernel_package(lab_host, said, "linux-image-lab", "98.2.0-1-generic")
        kernel_package(lab_host, said, "linux-headers-98.2.0-1-generic", "98.2.0-1-generic")
        newer = applied(lab_host, "kernel", kernel_image="linux-image-lab", kernel_series=["98.2"])
        assert (newer.state, newer.error) == ("ok", "")
        assert said(lab_host, "ls", "/lib/modules/98.2.0-1-generic/build") == "Makefile"
        (reason,) = newer.reboot_reasons
        assert reason.startswith("kernel.series-mismatch: ")
        assert reason.endswith(" runs, 98.2.0-1-generic boots next")
        unchanged(lab_host, "kernel", kernel_image="linux-image-lab", kernel_series=["98.2"])
    finally:
        said(lab_host, "sh", "-c", "apt-get purge -y -q 'linux-*-lab' 'linux-*-generic' 2>&1")
        said(lab_host, "rm", "-rf", "/srv/debs", "/etc/apt/sources.list.d/debs.list")


def test_an_environment_is_what_was_locked(lab_host: LabHost, said: Said, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(wheels.make_wheel(tmp_path))
    environment = {
        "name": "serve",
        "requirements": os.path.relpath(tmp_path / "requirements.txt", repository()),
        "sha256": hashlib.sha256((tmp_path / "requirements.txt").read_bytes()).hexdigest(),
    }
    wheel = next(tmp_path.glob("*.whl"))
    lab_host.ssh(["mkdir", "-p", "/srv/wheels"])
    lab_host.ssh(["sh", "-c", f"cat >/srv/wheels/{wheel.name}"], stdin=wheel.read_bytes())
    said(lab_host, "sh", "-c", "printf '[global]\\nno-index = true\\nfind-links = /srv/wheels\\n' >/etc/pip.conf")
    first = applied(lab_host, "python", python_environments=[environment])
    assert (first.state, first.error) == ("ok", "")
    program = "import tinything; print(tinything.version)"
    assert said(lab_host, "/opt/aerie/environments/serve/bin/python", "-c", program) == "1.0"
    unchanged(lab_host, "python", python_environments=[environment])
    said(lab_host, "sh", "-c", "rm /opt/aerie/environments/.made/*/requirements.txt")  # as a killed run leaves it
    assert applied(lab_host, "python", python_environments=[environment]).state == "ok"
    assert said(lab_host, "/opt/aerie/environments/serve/bin/python", "-c", program) == "1.0"
    refused = applied(lab_host, "python", python_environments=[{**environment, "sha256": "0" * 64}])
    assert refused.state == "failed"
    assert f"has sha256 {environment['sha256']}; expected {'0' * 64}" in refused.error


def test_the_folder_is_there_and_too_little_room_is_told_in_figures(lab_host: LabHost, said: Said) -> None:
    first = applied(lab_host, "storage", storage_min_free_gb=1)
    assert (first.state, first.error) == ("ok", "")
    assert said(lab_host, "stat", "-c", "%U %a", "/srv/aerie") == "root 755"
    unchanged(lab_host, "storage", storage_min_free_gb=1)
    low = applied(lab_host, "storage", storage_min_free_gb=10_000_000)
    assert low.state == "failed"
    assert "GB free; expected 10000000 GB" in low.error


def test_a_device_that_is_not_there_is_named(lab_host: LabHost) -> None:
    result = applied(lab_host, "storage", storage_device="/dev/nvme7n1", storage_min_free_gb=1)
    assert result.state == "failed"
    assert "/dev/nvme7n1 is no block device" in result.error


def test_the_service_account_has_folders_and_no_login(lab_host: LabHost, said: Said) -> None:
    first = applied(lab_host, "engine")
    assert (first.state, first.error) == ("ok", "")
    assert said(lab_host, "getent", "passwd", "aerie").endswith(":/srv/aerie/engine:/usr/sbin/nologin")
    assert said(lab_host, "stat", "-c", "%U:%G %a", "/srv/aerie/engine/cache") == "aerie:aerie 750"
    assert "AERIE_BIND=127.0.0.1" in said(lab_host, "cat", "/etc/aerie/engine.env")
    refused = lab_host.ssh(["su", "--login", "--command", shlex.quote("true"), "aerie"])
    assert refused.returncode != 0
    unchanged(lab_host, "engine")
