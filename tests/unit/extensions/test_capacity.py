"""What a host gives to a build: this one, and the recorded files of others (trees.json says where they are from)."""

import json
import os
from pathlib import Path

import pytest

from aerie.errors import AerieError
from aerie.extensions.capacity import read
from aerie.extensions.sizing import Capacity, Limit

TREES = json.loads(Path(__file__).with_name("trees.json").read_text())


@pytest.fixture
def tree(tmp_path):
    def make(name, **changes):
        for path, text in {**TREES[name], **changes}.items():
            if text is not None:
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(text)
        return tmp_path

    return make


def test_this_host():
    capacity = read()
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 1 <= capacity.processors <= len(os.sched_getaffinity(0))
    assert capacity.processors == len(os.sched_getaffinity(0)) or capacity.processors_source != "affinity"
    assert 0 < capacity.available_bytes < int(total.split()[1]) * 1024
    assert [limit for limit in capacity.limits if not Path(limit.where).is_file()] == []


def test_affinity_that_was_narrowed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert read().processors == 1
    finally:
        os.sched_setaffinity(0, before)


BUILD = "/sys/fs/cgroup/build.slice"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "version2",
            Capacity(
                processors=16,
                available_bytes=131_476_124 * 1024,
                limits=(
                    Limit(
                        where="/sys/fs/cgroup/jobs/memory.max",
                        limit_bytes=137_438_953_472,
                        used_bytes=815_886_336 - 752_267_264 - 41_717_760,
                    ),
                ),
            ),
        ),
        (
            "version2-limited",
            Capacity(
                processors=4,  # 3.5, rounded up
                processors_source=f"{BUILD}/cpu.max",
                available_bytes=131_261_068 * 1024,
                limits=(
                    Limit(
                        where=f"{BUILD}/build.scope/memory.high",
                        limit_bytes=40_000_000_000,
                        used_bytes=518_524_928 - 299_925_504,
                    ),
                    Limit(
                        where=f"{BUILD}/memory.max", limit_bytes=64_000_000_000, used_bytes=518_782_976 - 299_925_504
                    ),
                ),
            ),
        ),
        (
            "hybrid-limited",
            Capacity(
                processors=2,  # the quota is worth 1.5
                available_bytes=22_935_172 * 1024,
                limits=(
                    Limit(
                        where="/sys/fs/cgroup/memory/aerie-build/memory.limit_in_bytes",
                        limit_bytes=2_999_996_416,
                        used_bytes=308_584_448 - 100_003_840,
                    ),
                ),
            ),
        ),
    ],
)
def test_recorded_hosts(name, expected, tree):
    assert read(tree(name)) == expected


CPU = "sys/fs/cgroup/cpu/aerie-build"


def test_a_quota_of_version_1(tree):
    capacity = read(tree("hybrid-limited", **{f"{CPU}/cpu.cfs_quota_us": "100000\n"}))
    assert (capacity.processors, capacity.processors_source) == (1, f"/{CPU}/cpu.cfs_quota_us")


def test_a_quota_below_one_processor_is_one(tree):
    assert read(tree("version2-limited", **{"sys/fs/cgroup/build.slice/cpu.max": "5000 100000\n"})).processors == 1


# The container's own view: its group is the mount, and /proc/self/cgroup has the host's name, "/", or a way out of it.
MOUNT = "32 23 0:28 {} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounted", "own"),
    [("/docker/4f2a", "/docker/4f2a"), ("/", "/"), ("/docker/4f2a", "/"), ("/", "/../other"), ("/../..", "/")],
    ids=["host-s-names", "own-namespace", "mount-with-host-s-name", "outside", "mount-from-outside"],
)
def test_a_container_sees_its_limit_at_the_mount(mounted, own, tree):
    files = {
        "proc/self/mountinfo": MOUNT.format(mounted),
        "proc/self/cgroup": f"0::{own}\n",
        "sys/fs/cgroup/memory.max": "64000000000\n",
        "sys/fs/cgroup/memory.high": "max\n",
        "sys/fs/cgroup/memory.current": "1283989504\n",
        "sys/fs/other/memory.max": "4096\n",  # no group: it lies outside of the mount
    }
    capacity = read(tree("version2-limited", **files))
    # Below the use of memory.current are the recorded 1,230,893,056 and 53,432,320 bytes of files.
    assert [(limit.where, limit.limit_bytes) for limit in capacity.limits] == [
        ("/sys/fs/cgroup/memory.max", 64_000_000_000)
    ]
    assert capacity.limits[0].used_bytes == max(0, 1_283_989_504 - 1_230_893_056 - 53_432_320)


def test_a_host_without_control_groups(tree):
    capacity = read(tree("version2", **{"proc/self/mountinfo": None, "proc/self/cgroup": None}))
    assert capacity == Capacity(processors=16, available_bytes=131_476_124 * 1024)


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-3,8-11", 8), ("2,5,7", 3)])
def test_lists_of_processors(text, count, tree):
    assert read(tree("version2", **{"proc/self/status": f"Cpus_allowed_list:\t{text}\n"})).processors == count


def test_a_limit_whose_use_cannot_be_read_is_no_empty_group(tree):
    with pytest.raises(AerieError, match=r"build\.slice/memory\.current: 'not readable'.*build\.slice/memory\.max"):
        read(tree("version2-limited", **{"sys/fs/cgroup/build.slice/memory.current": None}))


@pytest.mark.parametrize(("file", "what"), [("proc/meminfo", "MemAvailable"), ("proc/self/status", "Cpus_allowed")])
@pytest.mark.parametrize("text", [None, "MemTotal: 1 kB\n"], ids=["absent", "without"])
def test_a_proc_that_does_not_say(file, what, text, tree):
    with pytest.raises(AerieError, match=rf"/{file}: 'no {what}"):
        read(tree("version2", **{file: text}))
