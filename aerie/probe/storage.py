"""Mounted file systems and the disks below them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from .reading import Later, join, optional, reading, text, unknown

__all__ = ["filesystems", "folders", "mounts"]

DISK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "vfat", "overlay", "virtiofs")
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "9p", "gpfs", "beegfs", "fuse")
PLACES = ("/", "/srv", "/data", "/mnt", "/media", "/opt")  # where folders for data are made, beside mount points
SHALLOW = ("/", "/opt")  # of these, only what lies directly below
MANY = 50
ANSWER_S = 1.0  # a network file system whose server is gone would never answer; a busy host takes its time


def filesystems(root: str = "/") -> dict[str, Any]:
    """The snapshot's filesystems by mount point."""
    found = mounts(text(join(root, "/proc/self/mountinfo")))
    sizes = {path: Later(os.statvfs, path) for path in found}
    return {path: reading(_filesystem, mount, sizes[path], root) for path, mount in found.items()}


def folders(root: str = "/") -> dict[str, Any]:
    """The snapshot's folders: names of folders in places for data and in mount points, two levels deep, by parent."""
    points = mounts(text(join(root, "/proc/self/mountinfo")))
    # A thread for each place: one whose server is gone would hold all others.
    asked = {place: Later(_tree, place, points, root) for place in dict.fromkeys((*PLACES, *points))}
    found: dict[str, Any] = {}
    for place, later in asked.items():
        found.update(_answer(place, later))
    return found


def _answer(place: str, later: Later) -> dict[str, Any]:
    try:
        return dict(later.get(ANSWER_S))
    except (OSError, TimeoutError) as error:
        return {place: unknown(error)}


def _tree(place: str, points: Iterable[str], root: str) -> dict[str, list[str]]:
    if not os.path.isdir(join(root, place)):
        return {}
    found = {place: _folders(join(root, place))}
    for name in [] if place in SHALLOW else found[place][:MANY]:
        inner = os.path.join(place, name)
        if inner not in points:
            found[inner] = _folders(join(root, inner))
    return found


def _folders(place: str) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def mounts(mountinfo: str) -> dict[str, dict[str, str]]:
    """The real file systems of /proc/self/mountinfo by mount point; of several on one point, the one on top."""
    found: dict[str, dict[str, str]] = {}
    for line in mountinfo.splitlines():
        own, _, shared = line.partition(" - ")
        fields, (kind, device, options) = own.split(), shared.split(" ", 2)
        path = _unescape(fields[4])
        is_real = kind in DISK or kind.split(".")[0] in NETWORK
        # A file mounted over a file (containers do that) is no place to store anything.
        if not is_real or (path != "/" and path.startswith(("/proc/", "/sys/", "/dev/", "/etc/", "/run/", "/snap/"))):
            found.pop(path, None)
            continue
        found[path] = {
            "path": path,
            "device": _unescape(device),
            "type": kind,
            # Those of the mount, then those of the file system; an overlay's name its layers, which nobody wants.
            "options": fields[5] if kind == "overlay" else ",".join(dict.fromkeys(f"{fields[5]},{options}".split(","))),
            "number": fields[2],
        }
    return found


def _filesystem(mount: dict[str, str], size: Later, root: str) -> dict[str, Any]:
    answer = size.get(ANSWER_S)
    disk = _disk(mount["device"], mount["number"], root)
    queue = join(root, f"/sys/block/{disk}/queue")
    readahead = optional(os.path.join(queue, "read_ahead_kb")) if disk else None
    scheduler = optional(os.path.join(queue, "scheduler")) if disk else None
    return {
        **{key: mount[key] for key in ("path", "device", "type", "options")},
        "total_bytes": answer.f_blocks * answer.f_frsize,
        "free_bytes": answer.f_bavail * answer.f_frsize,
        "free_inodes": answer.f_favail,
        "disk": disk,
        "readahead_kib": int(readahead) if readahead else None,
        "scheduler": _chosen(scheduler) if scheduler else None,
    }


def _disk(device: str, number: str, root: str) -> str | None:
    """The disk, "nvme0n1" below /dev/nvme0n1p2; a mapped or RAID device is its own. None where there is none."""
    if device.startswith("/dev/") and number.startswith("0:"):
        # btrfs has a number of its own.
        try:
            status = os.stat(device).st_rdev
        except OSError:
            return None
        number = f"{os.major(status)}:{os.minor(status)}"
    path = os.path.realpath(join(root, f"/sys/dev/block/{number}"))
    if not os.path.isdir(path):
        return None
    is_part = os.path.exists(os.path.join(path, "partition"))
    return os.path.basename(os.path.dirname(path) if is_part else path)


def _chosen(line: str) -> str:
    """The word in brackets, "none" of "[none] mq-deadline"."""
    match = re.search(r"\[([\w-]+)\]", line)
    return match[1] if match else line


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), word)
