"""The NVIDIA driver where it lies: in the kernel, as modules on disk, in DKMS."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from .reading import join, names, optional, program

__all__ = ["dkms", "loaded", "module_files", "modules", "options", "runfile", "uvm_disable_hmm"]

# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build" is the open flavour,
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.247.01  Tue …" the closed one.
# Where a kernel looks, best place first (depmod's own order): DKMS and runfiles, then Ubuntu's prebuilt modules.
PLACES = ("updates/dkms", "updates", "extra", "kernel/drivers/video", "kernel/drivers/char/drm", "kernel/nvidia*")
# NVIDIA's and Ubuntu's name, then Debian's for the closed and the open flavour; kernels compress as they like.
FILES = tuple(
    f"{name}.ko{end}"
    for name in ("nvidia", "nvidia-current", "nvidia-current-open")
    for end in ("", ".zst", ".xz", ".gz")
)
DKMS_NAME = re.compile(r"nvidia(-current|-tesla)?(-open)?(-srv)?(-\d[\d.]*)?(-open)?")


def loaded(version: str) -> tuple[str | None, str | None]:
    """(version, flavour) in /proc/driver/nvidia/version; (None, None) where the module is not loaded."""
    line = next((line for line in version.splitlines() if line.startswith("NVRM version:")), "")
    number = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", f"{line} ")
    if not number:
        return None, None
    return number[1], "open" if "Open Kernel Module" in line else "closed"


def uvm_disable_hmm(root: str = "/") -> bool | None:
    """The option of the loaded nvidia_uvm; None where that is not loaded."""
    parameter = optional(join(root, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"))
    return None if parameter is None else parameter in ("Y", "1")


def module_files(root: str = "/") -> dict[str, str]:
    """The path of nvidia.ko that each kernel on this host would load, by release."""
    folder = join(root, "/lib/modules")
    found = {}
    for release in names(folder):
        paths = (
            path
            for place in PLACES
            for file in FILES
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), glob.escape(release), place, file)))
        )
        first = next(paths, None)
        if first:
            found[release] = first
    return found


def modules(root: str = "/") -> dict[str, Any]:
    """The snapshot's Module of every kernel that has one, by release, as modinfo reads it."""
    files = module_files(root)
    # modinfo knows every compression that the host's kernels may use; Python does not know zstd before 3.14.
    running = {release: program("modinfo", path) for release, path in files.items()}
    found = {}
    for release, said in running.items():
        fields = dict(re.findall(r"^(version|license):\s*(.*)$", said.get(), re.MULTILINE))
        found[release] = {"version": fields.get("version", ""), "license": fields.get("license", "")}
    return found


def dkms(root: str = "/") -> dict[str, str]:
    """The version and its state, "590.48.01 installed" or "… built", by kernel release, from DKMS's own folder."""
    folder = join(root, "/var/lib/dkms")
    found: dict[str, str] = {}
    for name in names(folder):
        if not DKMS_NAME.fullmatch(name):
            continue
        tree = os.path.join(folder, name)
        links = {entry: os.path.realpath(os.path.join(tree, entry)) for entry in names(tree)}
        for version, path in links.items():
            if version.startswith("kernel-") or not os.path.isdir(path):
                continue
            for release in names(path):
                for arch in names(os.path.join(path, release)):
                    built = os.path.join(path, release, arch)
                    if os.path.isdir(os.path.join(built, "module")) or os.path.isdir(os.path.join(built, "log")):
                        # DKMS marks what it installed by a link kernel-RELEASE-ARCH to what it built.
                        is_in = links.get(f"kernel-{release}-{arch}") == os.path.realpath(built)
                        if is_in or release not in found:
                            found[release] = f"{version} {'installed' if is_in else 'built'}"
    return found


def options(lines: list[list[str]]) -> dict[str, str]:
    """The options that modprobe.d gives to modules of NVIDIA and to nouveau, by module."""
    found: dict[str, str] = {}
    for words in lines:
        if words[0] == "options" and len(words) > 2:
            module = words[1].replace("-", "_")
            if module.startswith("nvidia") or module == "nouveau":
                found[module] = " ".join([*found.get(module, "").split(), *words[2:]])
    return found


def runfile(packages: dict[str, Any], root: str = "/") -> str | None:
    """The path by which an install without packages gives itself away; None where there is none."""
    # Whatever the name of a package that would own the uninstaller: those of NVIDIA and Debian do not have it.
    if os.path.exists(join(root, "/usr/bin/nvidia-uninstall")):
        return "/usr/bin/nvidia-uninstall"
    has_packages = any(name.startswith(("libnvidia-compute", "libnvidia-ml1")) for name in packages)
    has_log = os.path.exists(join(root, "/var/log/nvidia-installer.log"))
    has_driver = bool(module_files(root)) or os.path.exists(join(root, "/proc/driver/nvidia/version"))
    # The log alone may be older than the packages that took over.
    return "/var/log/nvidia-installer.log" if has_log and has_driver and not has_packages else None
