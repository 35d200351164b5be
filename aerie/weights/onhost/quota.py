"""What the file system's quotas leave to this user and group: quotactl_fd(2), Linux 5.14 and later.

Limits of a folder (project quotas) need nothing here: ext4 and xfs answer statvfs with what they leave.
"""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Quota", "quotas"]

_QUOTACTL_FD: Final = 443  # its number on every architecture
_GETQUOTA: Final = 0x800007 << 8
_BLOCK: Final = 1024  # a quota counts limits in these, and use in bytes: linux/quota.h


class _Record(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in (
            "block_limit", "block_soft", "used_bytes", "inode_limit", "inode_soft", "used_inodes",
            "block_time", "inode_time",
        )),
        ("valid", ctypes.c_uint32),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One limit. of: user or group; bytes and inodes that are left, None where that is not limited."""

    of: str
    bytes_left: int | None
    inodes_left: int | None


def quotas(folder: Path) -> tuple[Quota, ...]:
    """The limits that hold in a folder for files of this process; none where none is set or the kernel cannot say."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, name, own in ((0, "user", os.geteuid()), (1, "group", os.getegid())):
            record = _Record()
            command = ctypes.c_uint(_GETQUOTA | number)
            if libc.syscall(_QUOTACTL_FD, descriptor, command, ctypes.c_int(own), ctypes.byref(record)) == 0:
                found.append(_quota(name, record))
    finally:
        os.close(descriptor)
    return tuple(one for one in found if (one.bytes_left, one.inodes_left) != (None, None))


def _quota(name: str, record: _Record) -> Quota:
    left = (record.block_limit * _BLOCK - record.used_bytes) if record.block_limit else None
    inodes = (record.inode_limit - record.used_inodes) if record.inode_limit else None
    return Quota(
        of=name,
        bytes_left=None if left is None else max(0, left),
        inodes_left=None if inodes is None else max(0, inodes),
    )
