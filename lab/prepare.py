"""A host's own files, in the layer above the base image, before its first boot and at each later start."""

import os
import shutil
from pathlib import Path

from . import network, standin
from .access import lab_key, make_key
from .host import LabHost
from .scenario import Scenario

__all__ = ["MAX_HOSTS", "prepare"]

MAX_HOSTS = 99
FILES = Path(__file__).resolve().parent / "files"
# The driver of a host that comes up with one; that of the lock `lab`.
PREINSTALLED = "590.44.01"
PROGRAMS = ("lab-init", "lab-gpu")


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
            _driver(folder / "upper", PREINSTALLED)
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
    for file in (upper / f"boot/vmlinuz-{release}", modules / "modules.order", modules / "modules.builtin"):
        file.touch()
    _install(FILES / "update-grub", upper / "usr/sbin/update-grub", 0o755)
    _install(FILES / "lab-kernel-log.service", upper / "etc/systemd/system/lab-kernel-log.service")
    wanted = upper / "etc/systemd/system/multi-user.target.wants/lab-kernel-log.service"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if not wanted.is_symlink():
        wanted.symlink_to("/etc/systemd/system/lab-kernel-log.service")
    grub = upper / "etc/default/grub"
    if not grub.exists():
        grub.parent.mkdir(parents=True, exist_ok=True)
        grub.write_text('GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n')


def _driver(upper: Path, version: str) -> None:
    """Library, module and their options, as if someone had copied them there; no package knows them."""
    built = standin.build(version)
    library = upper / "usr/lib/x86_64-linux-gnu"
    _install(built / f"libnvidia-ml.so.{version}", library / f"libnvidia-ml.so.{version}")
    (library / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")
    for module in (built / "open").iterdir():
        _install(module, upper / "usr/lib/modules" / os.uname().release / "updates/dkms" / module.name)
    option = upper / "etc/modprobe.d/nvidia-uvm.conf"
    option.parent.mkdir(parents=True, exist_ok=True)
    option.write_text("options nvidia_uvm uvm_disable_hmm=1\n")
    loader = upper / "boot/grub/grub.cfg"
    loader.parent.mkdir(parents=True, exist_ok=True)
    loader.write_text(f"\tlinux\t/boot/vmlinuz-{os.uname().release} root=/dev/vda1 ro quiet iommu=pt\n")
    (upper / "etc/default/grub.d").mkdir(exist_ok=True)
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
