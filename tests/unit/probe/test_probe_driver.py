"""The driver on disk and in the kernel."""

import pytest

from aerie.probe import driver, nvml

# The first two lines are those of open and closed modules as users report them.
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build  (dvs-builder@U22-I3-B03-4-3)
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.247.01  Tue Mar 25 13:04:35 UTC 2025\n"
VIRTUAL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (VirtualGPU)\n"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (OPEN, ("590.48.01", "open")),
        (CLOSED, ("535.247.01", "closed")),
        (VIRTUAL, ("560.35.03", "open")),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95\n", ("580.95", "open")),
        ("", (None, None)),
    ],
    ids=["open", "closed", "virtual", "two-numbers", "not-loaded"],
)
def test_the_loaded_module(version, found):
    assert driver.loaded(version) == found


def test_the_module_that_each_kernel_would_load(tree):
    root = tree(
        {
            "/lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko.zst": b"",
            "/lib/modules/6.8.0-88-generic/kernel/nvidia-580srv-open/nvidia.ko": b"",
            "/lib/modules/6.8.0-87-generic/kernel/nvidia-580srv-open/nvidia.ko": b"",
            "/lib/modules/6.8.0-86-generic/kernel/drivers/video/nvidia.ko": b"",
            "/lib/modules/6.8.0-85-generic/kernel/drivers/net/dummy.ko": b"",
            "/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open.ko": b"",
            "/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open-uvm.ko": b"",
        }
    )
    assert {release: path.removeprefix(root) for release, path in driver.module_files(root).items()} == {
        "6.8.0-88-generic": "/lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko.zst",
        "6.8.0-87-generic": "/lib/modules/6.8.0-87-generic/kernel/nvidia-580srv-open/nvidia.ko",
        "6.8.0-86-generic": "/lib/modules/6.8.0-86-generic/kernel/drivers/video/nvidia.ko",
        "6.1.0-50-amd64": "/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open.ko",
    }


def test_dkms_without_asking_dkms(tree):
    built = "/var/lib/dkms/nvidia/590.48.01/{}/x86_64"
    root = tree(
        {
            "/var/lib/dkms/nvidia/590.48.01/source": "-> /usr/src/nvidia-590.48.01",
            built.format("6.8.0-88-generic") + "/module/nvidia.ko.zst": b"",
            built.format("6.8.0-87-generic") + "/module/nvidia.ko.zst": b"",
            "/var/lib/dkms/nvidia/580.95.05/6.8.0-88-generic/x86_64/module/nvidia.ko.zst": b"",
            "/var/lib/dkms/nvidia/kernel-6.8.0-88-generic-x86_64": "-> 590.48.01/6.8.0-88-generic/x86_64",
            "/var/lib/dkms/nvidia/590.48.01/build/make.log": "",
            "/var/lib/dkms/nvidia-fs/2.26/6.8.0-88-generic/x86_64/module/nvidia-fs.ko": b"",
            "/var/lib/dkms/zfs/2.2/6.8.0-88-generic/x86_64/module/zfs.ko": b"",
        }
    )
    assert driver.dkms(root) == {"6.8.0-88-generic": "590.48.01 installed", "6.8.0-87-generic": "590.48.01 built"}


@pytest.mark.parametrize(
    ("files", "packages", "path"),
    [
        ({"/usr/bin/nvidia-uninstall": ""}, {"libnvidia-compute": {}}, "/usr/bin/nvidia-uninstall"),
        (
            {"/var/log/nvidia-installer.log": "", "/proc/driver/nvidia/version": OPEN},
            {},
            "/var/log/nvidia-installer.log",
        ),
        ({"/var/log/nvidia-installer.log": "", "/proc/driver/nvidia/version": OPEN}, {"libnvidia-compute": {}}, None),
        ({"/var/log/nvidia-installer.log": ""}, {}, None),
        ({"/proc/driver/nvidia/version": OPEN}, {}, None),
    ],
    ids=["uninstaller", "log", "log-older-than-packages", "log-alone", "container"],
)
def test_an_install_without_packages(tree, files, packages, path):
    assert driver.runfile(packages, tree(files)) == path


def test_options_of_one_module_are_joined():
    lines = [
        ["options", "nvidia-uvm", "uvm_disable_hmm=1"],
        ["options", "nvidia_uvm", "uvm_ats_mode=0"],
        ["options", "nouveau", "modeset=0"],
        ["options", "snd", "x=1"],
        ["blacklist", "nouveau"],
    ]
    assert driver.options(lines) == {"nvidia_uvm": "uvm_disable_hmm=1 uvm_ats_mode=0", "nouveau": "modeset=0"}


@pytest.mark.parametrize(("value", "found"), [("Y\n", True), ("N\n", False), (None, None)])
def test_hmm_of_the_loaded_module(tree, value, found):
    files = {} if value is None else {"/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": value}
    assert driver.uvm_disable_hmm(tree(files)) is found


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.590.48.01", "590.48.01"),
        ("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550.163.01", "550.163.01"),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", None),
    ],
)
def test_the_library_s_version_is_in_its_name(path, version):
    assert nvml.version_of(path) == version
