"""An initramfs of several parts, as initramfs-tools writes them, made here by cpio's rules."""

import gzip
import lzma
import os
import shutil
import subprocess

import pytest

from aerie.probe import initramfs
from aerie.probe.reading import ProgramFailed

MODULE = b"\x7fELF" + bytes(100) + b"license=Dual MIT/GPL\0version=580.95.05\0srcversion=ABC\0" + bytes(50)


def cpio(files: dict[str, bytes]) -> bytes:
    out = b""
    for number, (name, content) in enumerate([*files.items(), ("TRAILER!!!", b"")], 1):
        fields = [number, 0o100644, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return out + bytes(-len(out) % 512)


EARLY = cpio({"kernel/x86/microcode/AuthenticAMD.bin": b"070701 is not a head here"})
FILES = {"usr/lib/modules/6.8.0-88-generic/kernel/fs/x.ko": b"version=1.2.3", "scripts/init": b"x"}
WITH = {**FILES, "usr/lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko": MODULE}


def zstd(data: bytes) -> bytes:
    if shutil.which("zstd") is None:
        pytest.skip("needs zstd")
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, zstd], ids=["plain", "gzip", "xz", "zstd"])
def test_the_module_behind_the_microcode(pack):
    assert initramfs.version_in(EARLY + pack(cpio(WITH))) == "580.95.05"
    assert initramfs.version_in(EARLY + pack(cpio(FILES))) is None


def test_a_module_that_is_compressed_itself():
    files = {"usr/lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko.xz": lzma.compress(MODULE)}
    assert initramfs.version_in(EARLY + gzip.compress(cpio(files))) == "580.95.05"


def test_what_is_no_initramfs_is_an_error():
    with pytest.raises(ProgramFailed, match="begins with 3c68746d"):
        initramfs.version_in(b"<html>")


@pytest.mark.parametrize(("age_s", "found"), [(100, "580.95.05"), (-100, None)], ids=["older", "younger"])
def test_only_one_older_than_the_module_is_opened(tree, tmp_path, age_s, found):
    image, module = "boot/initrd.img-6.8.0-88-generic", "lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko"
    root = tree({image: EARLY + gzip.compress(cpio(WITH)), module: MODULE})
    written = (tmp_path / module).stat().st_mtime
    os.utime(tmp_path / image, (written - age_s, written - age_s))
    assert initramfs.version("6.8.0-88-generic", root) == found


def test_without_an_initramfs_there_is_none(tree):
    assert initramfs.version("6.8.0-88-generic", tree({})) is None
