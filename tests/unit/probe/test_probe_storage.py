"""Mounts as /proc/self/mountinfo has them."""

import os
import threading
import time

import pytest

from aerie.probe import storage

MOUNTINFO = """\
22 27 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
30 27 259:1 / /boot/efi rw,relatime shared:2 - vfat /dev/nvme0n1p1 rw,fmask=0077
31 27 259:5 / /srv/my\\040data rw,noatime shared:3 - xfs /dev/mapper/data rw,attr2
32 27 7:1 / /snap/core/1 ro,nodev,relatime shared:4 - squashfs /dev/loop1 ro
33 27 0:50 / /mnt/models rw,relatime shared:5 - nfs4 filer:/models rw,vers=4.2
34 27 0:51 / /home/u/s3 rw,nosuid shared:6 - fuse.s3fs s3fs rw
35 27 0:52 / /mnt/over rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b
36 27 0:53 / /tmp rw,nosuid - tmpfs tmpfs rw
37 27 259:6 / /mnt/hidden rw - ext4 /dev/nvme2n1 rw
38 37 0:54 / /mnt/hidden rw - tmpfs tmpfs rw
39 27 259:2 /etc/hosts /etc/hosts rw - ext4 /dev/nvme0n1p2 rw
"""


def test_real_file_systems_and_no_others():
    found = storage.mounts(MOUNTINFO)
    assert {path: mount["type"] for path, mount in found.items()} == {
        "/": "ext4",
        "/boot/efi": "vfat",
        "/srv/my data": "xfs",
        "/mnt/models": "nfs4",
        "/home/u/s3": "fuse.s3fs",
        "/mnt/over": "overlay",
    }
    assert found["/"]["options"] == "rw,relatime,errors=remount-ro"
    assert found["/mnt/over"]["options"] == "rw,relatime"


def test_the_disk_below_a_partition(tree):
    line = "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    disk = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1"
    root = tree(
        {
            "/proc/self/mountinfo": line,
            f"{disk}/nvme0n1p2/partition": "2\n",
            f"{disk}/queue/read_ahead_kb": "4096\n",
            f"{disk}/queue/scheduler": "[none] mq-deadline kyber\n",
            "/sys/dev/block/259:2": f"-> ../..{disk.removeprefix('/sys')}/nvme0n1p2",
            "/sys/block/nvme0n1": f"-> ..{disk.removeprefix('/sys')}",
        }
    )
    found = storage.filesystems(root)["/"]
    assert (found["disk"], found["readahead_kib"], found["scheduler"]) == ("nvme0n1", 4096, "none")
    assert found["total_bytes"] == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize


def test_a_file_system_without_a_disk(tree):
    root = tree({"/proc/self/mountinfo": "27 1 0:50 / / rw - overlay overlay rw\n"})
    found = storage.filesystems(root)["/"]
    assert (found["disk"], found["readahead_kib"], found["scheduler"]) == (None, None, None)


def test_a_mount_that_cannot_be_asked_is_unknown(tree):
    root = tree({"/proc/self/mountinfo": "27 1 0:50 / /nonexistent/mount rw - nfs4 filer:/x rw\n"})
    assert storage.filesystems(root) == {"/nonexistent/mount": {"unknown": "/nonexistent/mount: no such file"}}


def test_folders_of_places_for_data_and_of_mount_points(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 8:2 / /big rw - xfs /dev/sdb1 rw\n"
        "3 1 8:3 / /srv/fast rw - xfs /dev/sdc1 rw\n"
    )
    for folder in ("srv/aerie/weights", "srv/fast/models/kimi", "big/a/b/c", "opt/x/y"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "srv/file").touch()
    assert storage.folders(str(tmp_path)) == {
        "/": ["big", "opt", "proc", "srv"],
        "/srv": ["aerie", "fast"],
        "/srv/aerie": ["weights"],
        "/opt": ["x"],
        "/big": ["a"],
        "/big/a": ["b"],
        "/srv/fast": ["models"],
        "/srv/fast/models": ["kimi"],
    }


def test_a_place_that_does_not_answer_holds_no_other(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("2 1 0:50 / /mnt rw - nfs4 server:/x rw\n")
    (tmp_path / "mnt").mkdir()
    waits, folders = threading.Event(), storage._folders

    class Patient(storage.Later):
        """Only the place that never answers is given up: on a busy machine the others take their time too."""

        def __init__(self, read, place, *more):
            self.place = place
            super().__init__(read, place, *more)

        def get(self, timeout_s):
            return super().get(timeout_s if self.place == "/mnt" else 60)

    monkeypatch.setattr(storage, "Later", Patient)
    monkeypatch.setattr(
        storage, "_folders", lambda place: waits.wait(600) if place.endswith("/mnt") else folders(place)
    )
    found = storage.folders(str(tmp_path))
    waits.set()
    assert found["/mnt"] == {"unknown": "tree: no answer within 1 s"}
    assert found["/"] == ["mnt", "proc"]


def test_many_places_that_do_not_answer_are_given_up_together():
    never = threading.Event()
    asked = [storage.Later(never.wait, 600) for _ in range(100)]
    began = time.monotonic()
    for one in asked:
        with pytest.raises(TimeoutError, match="no answer within 1 s"):
            one.get(1)
    assert time.monotonic() - began < 50  # one after the other they took 100
    never.set()
