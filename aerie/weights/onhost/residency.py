"""How much of a file is in the page cache: cachestat(2), and mincore(2) where the kernel (before 6.5) lacks it.

Standard library only, for this runs on the hosts.
"""

import ctypes
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from aerie.errors import AerieError

__all__ = ["measure", "resident_bytes"]

_CACHESTAT = 451  # its number on every architecture but alpha
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WINDOW = 1 << 30  # mapped at once by the fallback: 256 KiB of answers
_PROT_READ, _MAP_SHARED = 1, 1
_MAP_FAILED = ctypes.c_void_p(-1).value
_LOW_BIT = bytes(value & 1 for value in range(256))  # the other bits of mincore's answers mean nothing

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


def measure(root: Path, paths: Mapping[str, int]) -> dict[str, int]:
    """Bytes in the page cache of each file below `root`; 0 for a file that is not there.

    paths: the files and their sizes, of which no more than that is counted. Raises AerieError for a file whose pages
    this user may not count.
    """
    found = {}
    for path, size in paths.items():
        try:
            found[path] = min(size, resident_bytes(root / path))
        except FileNotFoundError:
            found[path] = 0
    return found


def resident_bytes(path: Path, *, by_mincore: bool = False) -> int:
    """Bytes of the file that are in the page cache, whole pages but for the last. by_mincore: as on older kernels.

    Raises AerieError for a file that is neither this user's nor writable by him: kernels hide or invent the answer.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() and not os.access(path, os.W_OK, effective_ids=True):
            raise AerieError(
                f"residency of {path}",
                seen=f"a file of user {status.st_uid}",
                expected="a file of this user, or one that he may write",
                remedy="Ask as root: the kernel counts cached pages for nobody else.",
            )
        pages = None if by_mincore else _cachestat(descriptor)
        return min(status.st_size, (_mincore(descriptor, status.st_size) if pages is None else pages) * _PAGE)
    finally:
        os.close(descriptor)


def _cachestat(descriptor: int) -> int | None:
    """Cached pages; None where the kernel has no such call or a sandbox forbids it."""
    whole, stat = _Range(0, 0), _Stat()  # length 0: to the end
    done = _libc.syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_int(descriptor), ctypes.byref(whole), ctypes.byref(stat), ctypes.c_uint(0)
    )
    if done == 0:
        return int(stat.cached)
    failed = ctypes.get_errno()
    if failed in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
        return None
    raise OSError(failed, os.strerror(failed))


def _mincore(descriptor: int, size: int) -> int:
    pages = 0
    for offset in range(0, size, _WINDOW):
        length = min(_WINDOW, size - offset)
        address = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, descriptor, offset)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        answers = ctypes.create_string_buffer(-(-length // _PAGE))
        try:
            if _libc.mincore(address, length, answers) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            _libc.munmap(address, length)
        pages += answers.raw.translate(_LOW_BIT).count(1)
    return pages
