"""The real thing, beside the stand-ins: Debian's own driver, its open module built by DKMS, NVML without a card.

On Debian 12, whose archive moves no more: the module of Debian 13 (550.163.01) does not build for its present kernel,
6.12.117, nor for that of the backports, since pci_resize_resource() takes one more argument there.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lab
from aerie import inventory, provision, remote
from aerie.snapshot import Module, Snapshot, Unknown
from lab import LabHost
from lab.lifecycle import GIB

pytestmark = [pytest.mark.lab, pytest.mark.slow]

Said = Callable[..., str]
PACKAGES = ("linux-image-amd64", "linux-headers-amd64", "nvidia-open-kernel-dkms", "libnvidia-ml1", "nvidia-smi")
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--quiet")
COMPONENTS = "main contrib non-free non-free-firmware"


@pytest.fixture(scope="module")
def host(lab_home: Path) -> Iterator[LabHost]:
    """A Debian 12 host with the archive's kernel to boot next, and the archive's driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        (one,) = lab.up(1, gpus="bare", suite="bookworm", memory_bytes=4 * GIB)
        machine = os.uname().release  # its kernel is on the host in name only, so nothing can be built for it
        for argv in (
            ["sh", "-c", f"rm -r /lib/modules/{machine} /boot/*{machine}"],
            ["sed", "-i", f"s/ main$/ {COMPONENTS}/", "/etc/apt/sources.list"],
            [*APT, "-o", "APT::Update::Error-Mode=any", "update"],
            [*APT, "--no-install-recommends", "install", *PACKAGES],
        ):
            done = one.ssh(argv, timeout_s=3600)
            assert done.returncode == 0, (done.stdout + done.stderr)[-3000:].decode(errors="replace")
        yield one
        lab.down()


@pytest.fixture(scope="module")
def snapshot(host: LabHost) -> Snapshot:
    """What aerie reads on it."""
    return remote.probe(inventory.host(host.name, host.inventory))


def version_of(snapshot: Snapshot, package: str) -> str:
    """ "535.261.03" of Debian's 535.261.03-1."""
    assert not isinstance(snapshot.base.packages, Unknown)
    return snapshot.base.packages[package].version.partition("-")[0]


def test_the_open_module_is_built_for_the_archives_kernel(host: LabHost, snapshot: Snapshot, said: Said) -> None:
    kernel, version = snapshot.kernel.next_release, version_of(snapshot, "nvidia-open-kernel-dkms")
    assert re.fullmatch(r"6\.1\.0-\d+-amd64", str(kernel))
    assert snapshot.driver.dkms == {kernel: f"{version} installed"}
    assert snapshot.driver.modules == {kernel: Module(version=version, license="Dual MIT/GPL")}
    built = said(host, "find", f"/lib/modules/{kernel}/updates/dkms", "-name", "nvidia*.ko*").splitlines()
    assert len(built) == 5  # nvidia, modeset, drm, uvm, peermem
    for file in built:
        assert said(host, "modinfo", "-F", "vermagic", file).startswith(f"{kernel} SMP ")


def test_nvml_and_nvidia_smi_say_that_no_driver_is_loaded(host: LabHost, snapshot: Snapshot) -> None:
    assert snapshot.driver.nvml_error == "9 Driver Not Loaded"
    assert snapshot.driver.library_version == version_of(snapshot, "libnvidia-ml1")
    assert snapshot.driver.loaded_version is None
    assert isinstance(snapshot.gpus, Unknown) and "9 Driver Not Loaded" in snapshot.gpus.unknown
    smi = host.ssh(["nvidia-smi"])
    assert smi.returncode == 9
    assert b"couldn't communicate with the NVIDIA driver" in smi.stdout


def test_the_plan_tells_of_another_driver_and_finds_no_fault_in_how_it_was_built(
    host: LabHost, snapshot: Snapshot
) -> None:
    (planned,) = provision.prepare("lab01", inventory_file=host.inventory).plan.hosts
    seen = {finding.id: finding.seen for finding in planned.findings}
    assert seen["driver.version-mismatch"].endswith(f", library {snapshot.driver.library_version}, loaded none")
    faults = {
        "base.unknown",
        "driver.module-missing",
        "driver.closed-module",
        "driver.mixed-flavours",
        "driver.runfile",
    }
    assert faults & set(seen) == set()
