"""Kernels: which boots next, its command line, modules."""

import pytest

from aerie.probe import kernel
from aerie.probe.reading import ProgramFailed

# As update-grub of Ubuntu 24.04 writes it, shortened.
GRUB_CFG = """\
menuentry 'Ubuntu' --class ubuntu $menuentry_id_option 'gnulinux-simple-x' {
\tlinux\t/boot/vmlinuz-6.8.0-88-generic root=UUID=x ro  iommu=pt console=ttyS0
\tinitrd\t/boot/initrd.img-6.8.0-88-generic
}
submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-x' {
\tmenuentry 'Ubuntu, with Linux 6.8.0-88-generic (recovery mode)' {
\t\tlinux\t/boot/vmlinuz-6.8.0-88-generic root=UUID=x ro recovery nomodeset
\t}
\tmenuentry 'Ubuntu, with Linux 6.8.0-9-generic' {
\t\tlinux\t/boot/vmlinuz-6.8.0-9-generic root=UUID=x ro quiet
\t}
}
"""
CLOUD = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT console=ttyS0"\n'
IMAGES = {
    "/boot/vmlinuz-6.8.0-88-generic": "",
    "/boot/vmlinuz-6.8.0-9-generic": "",
    "/boot/vmlinuz.old": "",
    "/boot/initrd.img-6.8.0-88-generic": "",
}


def test_releases_are_ordered_by_number(tree):
    assert kernel.installed(tree(IMAGES)) == ["6.8.0-9-generic", "6.8.0-88-generic"]


@pytest.mark.parametrize(
    ("files", "release"),
    [
        ({}, "6.8.0-88-generic"),
        ({"/etc/default/grub": "GRUB_DEFAULT=0\n"}, "6.8.0-88-generic"),
        (
            {"/etc/default/grub": 'GRUB_DEFAULT="Advanced options for Ubuntu>Ubuntu, with Linux 6.8.0-9-generic"\n'},
            "6.8.0-9-generic",
        ),
        (
            {
                "/etc/default/grub": "GRUB_DEFAULT=saved\n",
                "/boot/grub/grubenv": "# GRUB\nsaved_entry=gnulinux-advanced-x>gnulinux-6.8.0-9-generic-advanced-x\n",
            },
            "6.8.0-9-generic",
        ),
        (
            {"/etc/default/grub": "GRUB_DEFAULT=saved\n", "/boot/grub/grubenv": "# GRUB\n"},
            "6.8.0-88-generic",
        ),
        (
            {
                "/etc/default/grub": "GRUB_DEFAULT=0\n",
                "/boot/grub/grubenv": "next_entry=gnulinux-6.8.0-9-generic-advanced-x\n",
            },
            "6.8.0-9-generic",
        ),
    ],
    ids=["no-grub", "first", "by-title", "saved", "nothing-saved", "once"],
)
def test_the_kernel_that_boots_next(tree, files, release):
    assert kernel.next_release("6.8.0-9-generic", tree({**IMAGES, **files})) == release


def test_an_entry_that_names_no_kernel_cannot_be_told(tree):
    root = tree({**IMAGES, "/etc/default/grub": "GRUB_DEFAULT=2\n"})
    with pytest.raises(ProgramFailed, match="default is '2'"):
        kernel.next_release("6.8.0-9-generic", root)


def test_a_container_boots_the_kernel_of_its_machine(tree):
    root = tree({"/run/systemd/container": "systemd-nspawn\n"})
    assert kernel.next_release("6.18.0", root) == "6.18.0"


def test_a_machine_without_images_cannot_be_told(tree):
    with pytest.raises(ProgramFailed, match="no kernel image"):
        kernel.next_release("6.18.0", tree({"/proc/1/environ": ""}))


@pytest.mark.parametrize(
    ("files", "cmdline"),
    [
        ({"/boot/grub/grub.cfg": GRUB_CFG}, "root=UUID=x ro  iommu=pt console=ttyS0"),
        (
            {
                "/etc/default/grub": 'GRUB_CMDLINE_LINUX=""\nGRUB_CMDLINE_LINUX_DEFAULT="quiet" # words\n',
                "/etc/default/grub.d/50-cloud.cfg": CLOUD,
                "/etc/default/grub.d/aerie.cfg": 'GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX} iommu=pt"\n',
            },
            "iommu=pt quiet console=ttyS0",
        ),
    ],
    ids=["written", "to-be-written"],
)
def test_the_command_line_of_the_next_boot(tree, files, cmdline):
    found = kernel.kernel(tree({**IMAGES, **BASE, **files}))
    assert found["next_cmdline"] == cmdline


BASE = {
    "/proc/sys/kernel/osrelease": "6.8.0-9-generic\n",
    "/proc/cmdline": "ro quiet modprobe.blacklist=nouveau,nvidiafb\n",
    "/proc/modules": "nvidia_uvm 2097152 0 - Live 0x0 (OE)\nnvidia 9000000 4 nvidia_uvm, Live 0x0 (OE)\n",
}


def test_a_whole_kernel(tree):
    root = tree(
        {
            **IMAGES,
            **BASE,
            "/usr/src/linux-headers-6.8.0-88-generic/Makefile": "",
            "/lib/modules/6.8.0-88-generic/build": "-> ../../../usr/src/linux-headers-6.8.0-88-generic",
            "/lib/modules/6.8.0-9-generic/build": "-> ../../../usr/src/linux-headers-6.8.0-9-generic",
            "/etc/modprobe.d/a.conf": "# blacklist not-this\nblacklist pcspkr\nalias x y\n",
            "/usr/lib/modprobe.d/a.conf": "blacklist hidden-by-etc\n",
            "/usr/lib/modprobe.d/b.conf": "blacklist snd-pcsp\n",
        }
    )
    found = kernel.kernel(root)
    assert found["headers"] == ["6.8.0-88-generic"]
    assert found["loaded_modules"] == ["nvidia", "nvidia_uvm"]
    assert found["blacklisted_modules"] == ["nouveau", "nvidiafb", "pcspkr", "snd_pcsp"]
    assert found["secure_boot"] is None
    assert found["is_signing_key_enrolled"] is None


@pytest.mark.parametrize(("value", "is_on"), [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\x00", False)])
def test_secure_boot(tree, value, is_on):
    assert kernel.kernel(tree({**BASE, **IMAGES, kernel.SECURE_BOOT: value}))["secure_boot"] is is_on


def test_efi_without_the_variable_is_unknown(tree):
    root = tree({**BASE, **IMAGES, "/sys/firmware/efi/fw_platform_size": "64"})
    assert "no such file" in kernel.kernel(root)["secure_boot"]["unknown"]


def test_a_kernel_without_modules_has_its_loaded_ones_in_sys(tree):
    root = tree({"/sys/module/nvidia/initstate": "live\n", "/sys/module/printk/parameters/time": "Y\n"})
    assert kernel.loaded_modules(root) == ["nvidia"]
