"""Which kernels of this host can boot, and whether NVIDIA's module of a version is built for each; JSON on stdout.

Run on a host by the role driver: python3 modules.py VERSION. Standard library only; changes nothing.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

MODULES = Path("/lib/modules")
BOOT = Path("/boot")
DKMS = Path("/var/lib/dkms/nvidia")
OPTIONS = Path("/etc/modprobe.d/90-aerie-nvidia.conf")


def order(release: str) -> list[tuple[int, int | str]]:
    """Sorts 6.8.0-9 before 6.8.0-31, as boot loaders do."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.findall(r"\d+|[^\d.-]+", release)]


def bootable(running: str) -> list[str]:
    """Kernels with an image in /boot, oldest first, and the running one, which a machine may get from elsewhere."""
    images = {path.name.removeprefix("vmlinuz-") for path in BOOT.glob("vmlinuz-*")}
    return sorted(images | {running}, key=order)


def built(kernel: str, version: str) -> tuple[str, str]:
    """The module's file for a kernel and the version in it; "" for what is not there."""
    for path in sorted((MODULES / kernel).glob("**/nvidia.ko*")):
        done = subprocess.run(["modinfo", "-F", "version", str(path)], capture_output=True, text=True, check=False)
        seen = done.stdout.strip()
        if not seen and (DKMS / version / kernel).is_dir():  # no modinfo here: what DKMS keeps of the build tells
            seen = version
        return str(path), seen
    return "", ""


def is_stale(kernel: str, file: str) -> bool:
    """Whether the kernel's initramfs is older than the module or its options, so that it may hold others."""
    initrd = BOOT / f"initrd.img-{kernel}"
    parts = [path for path in (Path(file), OPTIONS) if path.is_file()]
    return initrd.exists() and any(path.stat().st_mtime > initrd.stat().st_mtime for path in parts)


def make_log(version: str) -> str:
    """The last lines of the log of a build that failed: DKMS leaves it in build/ then, and moves it away otherwise."""
    log = DKMS / version / "build/make.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:]) if log.is_file() else ""


def main() -> int:
    """One document: kernels [{kernel, running, newest, must, file, version, initrd_stale}] and make_log."""
    version = sys.argv[1]
    running = os.uname().release
    names = bootable(running)
    newest = [name for name in names if (BOOT / f"vmlinuz-{name}").exists()][-1:] or [running]
    kernels = []
    for name in names:
        file, seen = built(name, version)
        kernels.append(
            {
                "kernel": name,
                "running": name == running,
                "newest": name == newest[0],
                "must": name == running or name == newest[0] or (MODULES / name / "build").exists(),
                "file": file,
                "version": seen,
                "initrd_stale": is_stale(name, file),
            }
        )
    json.dump({"kernels": kernels, "make_log": make_log(version)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
