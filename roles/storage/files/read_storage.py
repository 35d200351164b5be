"""Prints what the role decides by, as one JSON object. Arguments: the folder, and the device to mount there or "".

exists: is the folder there? mount: where the file system that holds it, or will hold it, is mounted.
free_bytes: what it offers to root's programs. disks: those below it, [{"name", "match", "readahead_kib", "scheduler",
"schedulers"}]; match: udev's words that know it again; scheduler is null where the disk has none.
device: null, or {"is_there", "type", "uuid", "is_blank", "is_mounted"} of the device.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

SYS = Path("/sys/class/block")
IDENTITIES = ("MD_UUID", "DM_UUID", "ID_WWN", "ID_SERIAL")  # most telling first


def said(*argv: str) -> str:
    """What a program writes, "" when it fails or is not there."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def holding(path: str) -> str:
    """The folder itself, or the nearest one above that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def disks(source: str) -> list[str]:
    """Names of the block devices below a mounted source, partitions left out; none for an overlay or a network."""
    if not source.startswith("/dev/"):
        return []
    rows = said("lsblk", "--inverse", "--noheadings", "--list", "--output", "KNAME,TYPE", source).splitlines()
    return sorted({row.split()[0] for row in rows if row.split()[1] != "part"})


def disk(name: str) -> dict[str, object]:
    """A disk as it is set now."""
    told = dict(
        line.split("=", 1)
        for line in said("udevadm", "info", "--query=property", f"--name={name}").splitlines()
        if "=" in line
    )
    matches = [f'ENV{{{key}}}=="{told[key]}"' for key in IDENTITIES if told.get(key)]
    queue = SYS / name / "queue"
    words = (queue / "scheduler").read_text().split() if (queue / "scheduler").exists() else []
    current = [word.strip("[]") for word in words if word.startswith("[")]
    return {
        "name": name,
        "match": matches[0] if matches else f'KERNEL=="{name}"',
        "readahead_kib": int((queue / "read_ahead_kb").read_text()),
        "scheduler": current[0] if current else None,
        "schedulers": [word.strip("[]") for word in words],
    }


def device(path: str) -> dict[str, object] | None:
    """What is on the device. is_blank: no file system, no partition table, no member of an array, nobody uses it."""
    if not path:
        return None
    real = os.path.realpath(path)
    if not Path(real).is_block_device():
        return {"path": path, "type": None, "uuid": None, "is_blank": False, "is_mounted": False, "is_there": False}
    probe = ("blkid", "--probe", "--output", "export", real)
    told = dict(line.split("=", 1) for line in said(*probe).splitlines() if "=" in line)
    below = said("lsblk", "--noheadings", "--list", "--output", "KNAME", real).split()
    mounted = said("findmnt", "--noheadings", "--source", real)
    return {
        "path": path,
        "type": told.get("TYPE"),
        "uuid": told.get("UUID"),
        "is_blank": subprocess.run(probe, capture_output=True, check=False).returncode == 2 and len(below) <= 1,
        "is_mounted": bool(mounted.strip()),
        "is_there": True,
    }


def main() -> None:
    folder, wanted = sys.argv[1:3]
    there = holding(folder)
    free = os.statvfs(there)
    source = said("findmnt", "--noheadings", "--output", "SOURCE", "--target", there).strip().partition("[")[0]
    report = {
        "exists": there == folder,
        "mount": said("findmnt", "--noheadings", "--output", "TARGET", "--target", there).strip(),
        "free_bytes": free.f_bavail * free.f_frsize,
        "disks": [disk(name) for name in disks(source)],
        "device": device(wanted),
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
