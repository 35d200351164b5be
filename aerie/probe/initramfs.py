"""The NVIDIA module inside an initramfs, which is loaded before anything on disk."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

from .driver import module_files
from .reading import ProgramFailed, join

__all__ = ["version", "version_in"]

HEADER = 110  # bytes of a cpio entry's head in the format "newc", which the kernel wants
MODULE = re.compile(rb"/nvidia(-current(-open)?)?\.ko(\.\w+)?$")


# These two are imported where they are needed, which is seldom.
def _gunzip(data: bytes) -> bytes:
    import gzip

    return gzip.decompress(data)


def _unxz(data: bytes) -> bytes:
    import lzma

    return lzma.decompress(data)


# What stands at the start of a compressed part, and the program or function that opens it.
OPENERS: tuple[tuple[bytes, Any], ...] = (
    (b"\x1f\x8b", _gunzip),
    (b"\xfd7zXZ", _unxz),
    (b"\x5d\x00\x00", _unxz),
    (b"\x28\xb5\x2f\xfd", ("zstd", "-dcq")),
    (b"\x02\x21\x4c\x18", ("lz4", "-dcq")),
)


def version(release: Any, root: str = "/") -> str | None:
    """Of the module in this kernel's initramfs; None where it has none, or is younger than the module on disk.

    A younger one was made with that module in place, so it cannot hold another; an older one is opened and read,
    which may take some tenths of a second.
    """
    if not isinstance(release, str):
        raise ProgramFailed("it cannot be told which kernel boots next")
    image = join(root, f"/boot/initrd.img-{release}")
    module = module_files(root).get(release)
    if not os.path.exists(image) or (module and os.stat(image).st_mtime >= os.stat(module).st_mtime):
        return None
    with open(image, "rb") as file:
        return version_in(file.read())


def version_in(image: bytes) -> str | None:
    """The version of nvidia.ko in this initramfs, whose parts are cpio archives, each compressed or not."""
    while True:
        image = image.lstrip(b"\0")
        if not image:
            return None
        if image.startswith((b"070701", b"070702")):
            found, end = _walk(image)
            if found is not None:
                return found
            image = image[end:]
        else:
            image = _open(image)


def _walk(archive: bytes) -> tuple[str | None, int]:
    """The module's version and where the archive ends."""
    at = 0
    while archive[at : at + 5] == b"07070":
        size, name_size = int(archive[at + 54 : at + 62], 16), int(archive[at + 94 : at + 102], 16)
        name = archive[at + HEADER : at + HEADER + name_size - 1]
        start = -(-(at + HEADER + name_size) // 4) * 4
        if MODULE.search(b"/" + name):
            return _module_version(archive[start : start + size]), 0
        at = -(-(start + size) // 4) * 4
        if name == b"TRAILER!!!":
            break
    return None, at


def _module_version(module: bytes) -> str:
    if not module.startswith(b"\x7fELF"):
        module = _open(module)
    # The section .modinfo holds "key=value" between zero bytes.
    match = re.search(rb"\0version=(\d+(?:\.\d+)+)\0", module)
    if match is None:
        raise ProgramFailed("the module in the initramfs names no version")
    return match[1].decode()


def _open(data: bytes) -> bytes:
    opener = next((opener for magic, opener in OPENERS if data.startswith(magic)), None)
    if opener is None:
        raise ProgramFailed(f"an initramfs that begins with {data[:4].hex()}")
    if callable(opener):
        return bytes(opener(data))
    try:
        done = subprocess.run(opener, input=data, capture_output=True, timeout=10, check=False)
    except FileNotFoundError as error:
        raise ProgramFailed(f"{opener[0]}: not installed, and the initramfs needs it") from error
    if not done.stdout:
        raise ProgramFailed(f"{opener[0]}: exit {done.returncode} {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
