"""A host's own files, in the layer above the base image, before its first boot and at each later start."""

import gzip
import os
import shutil
from pathlib import Path

from . import network
from .access import lab_key, make_key
from .host import LabHost
from .scenario import Scenario

__all__ = ["MAX_HOSTS", "prepare"]

MAX_HOSTS = 99
FILES = Path(__file__).resolve().parent / "files"
PROGRAMS = ("lab-init", "lab-gpu")
# cpio's form "newc": a header of 110 bytes and the name that ends an archive; the host's update-initramfs fills it.
EMPTY_ARCHIVE = b"070701" + b"0" * 8 * 11 + b"0000000b" + b"0" * 8 + b"TRAILER!!!\0" + b"\0" * 3


def prepare(host: LabHost, scenario: Scenario | None) -> None:
    """Write the host's files; those that are there already stay. scenario: its cards, None for a host without."""
    folder = host.folder
    made = folder / "upper/etc/lab/made"
    for path in (folder / "work", folder / "root", folder / "upper"):
        path.mkdir(parents=True, exist_ok=True)
    _identity(host)
    _kernel(folder / "upper")
    for name in PROGRAMS:
        _install(FILES / name, folder / "upper/usr/local/sbin" / name, 0o755)
    _install(FILES / "sysctl", folder / "upper/etc/lab/sysctl")
    if scenario is not None and not made.exists():
        (folder / "upper/etc/lab/scenario.json").write_text(scenario.document())
        (folder / "upper/etc/lab/until-reboot").write_text("at the first boot")
        if scenario.has_driver:
            _driver_options(folder / "upper")
            (folder / "upper/etc/lab/wants-driver").touch()
    made.touch()


def _identity(host: LabHost) -> None:
    """Name, neighbours, name servers, keys."""
    etc = host.folder / "upper/etc"
    (etc / "ssh").mkdir(parents=True, exist_ok=True)
    make_key(etc / "ssh/ssh_host_ed25519_key")
    (etc / "hostname").write_text(f"{host.name}\n")
    rows = (f"{network.address_of(number)} lab{number:02}\n" for number in range(1, MAX_HOSTS + 1))
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{''.join(rows)}")
    (etc / "resolv.conf").write_bytes(_resolver())
    ssh = host.folder / "upper/root/.ssh"
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(lab_key(host.state).with_suffix(".pub"), ssh / "authorized_keys")


def _kernel(upper: Path) -> None:
    """The running kernel as an installed one, with headers and an entry of the boot loader: files in their places."""
    release = os.uname().release
    modules = upper / "usr/lib/modules" / release
    (modules / "build").mkdir(parents=True, exist_ok=True)
    (upper / "boot").mkdir(exist_ok=True)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        (modules / name).touch()
    (modules / "build/Makefile").write_text(f"# headers of {release}\n")
    (upper / f"boot/vmlinuz-{release}").touch()
    (upper / f"boot/config-{release}").write_text("CONFIG_RD_GZIP=y\n")
    initrd = upper / f"boot/initrd.img-{release}"
    if not initrd.exists():
        initrd.write_bytes(gzip.compress(EMPTY_ARCHIVE))
    _install(FILES / "update-grub", upper / "usr/sbin/update-grub", 0o755)
    _install(FILES / "lab-kernel-log.service", upper / "etc/systemd/system/lab-kernel-log.service")
    wanted = upper / "etc/systemd/system/multi-user.target.wants/lab-kernel-log.service"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if not wanted.is_symlink():
        wanted.symlink_to("/etc/systemd/system/lab-kernel-log.service")
    grub = upper / "etc/default/grub"
    (upper / "etc/default/grub.d").mkdir(parents=True, exist_ok=True)
    if not grub.exists():
        grub.write_text('GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n')


def _driver_options(upper: Path) -> None:
    """What a host with a driver has beside its packages: the option of nvidia_uvm, and the IOMMU passing through."""
    option = upper / "etc/modprobe.d/nvidia-uvm.conf"
    option.parent.mkdir(parents=True, exist_ok=True)
    option.write_text("options nvidia_uvm uvm_disable_hmm=1\n")
    loader = upper / "boot/grub/grub.cfg"
    loader.parent.mkdir(parents=True, exist_ok=True)
    loader.write_text(f"\tlinux\t/boot/vmlinuz-{os.uname().release} root=/dev/vda1 ro quiet iommu=pt\n")
    (upper / "etc/default/grub.d/iommu.cfg").write_text('GRUB_CMDLINE_LINUX="iommu=pt"\n')


def _install(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(mode)


def _resolver() -> bytes:
    """The machine's name servers as a host can reach them."""
    text = Path("/etc/resolv.conf").read_bytes()
    behind = Path("/run/systemd/resolve/resolv.conf")  # what a local stub at 127.0.0.53 asks
    return behind.read_bytes() if b"127.0.0.53" in text and behind.exists() else text
