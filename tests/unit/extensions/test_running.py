"""What is reserved for services that run while a build goes on, from files as a host has them."""

from pathlib import Path

import pytest

from aerie.extensions.running import Service, read, reserve

GIB = 1 << 30
UNIT = "aerie-engine-tiny-blue.service"
MOUNT = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """An engine of a server and two workers, a shell's process on a GPU, and one of the kernel's threads."""
    for pid, group, kib in ((11, UNIT, 1 << 20), (12, UNIT, 3 << 20), (13, UNIT, 2 << 20), (40, "user.slice", 1 << 20)):
        written(tmp_path, f"proc/{pid}/cgroup", f"0::/system.slice/{group}\n")
        written(tmp_path, f"proc/{pid}/status", f"Name:\tpython\nVmRSS:\t99999999 kB\nRssAnon:\t {kib} kB\n")
    written(tmp_path, "proc/2/cgroup", "0::/\n")
    written(tmp_path, "proc/2/status", "Name:\tkthreadd\n")
    written(tmp_path, "proc/self/mountinfo", MOUNT)
    return tmp_path


def written(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def limited(root: Path, maximum: str) -> None:
    folder = f"sys/fs/cgroup/system.slice/{UNIT}"
    written(root, f"{folder}/memory.max", f"{maximum}\n")
    written(root, f"{folder}/memory.current", f"{50 * GIB}\n")
    written(root, f"{folder}/memory.stat", f"active_file {30 * GIB}\ninactive_file {10 * GIB}\n")


ASKED = {"unit": UNIT, "pids": [12, 13], "workers": 2}


@pytest.mark.parametrize(("maximum", "room"), [("max", None), (str(11 * GIB), GIB), (str(9 * GIB), 0)])
def test_an_engine_is_all_of_its_units_processes_and_its_cached_weights_are_no_part_of_it(host, maximum, room):
    limited(host, maximum)
    (found,) = read([ASKED], host)
    assert found == Service(name=UNIT, workers=2, held_bytes=6 * GIB, room_bytes=room)
    assert found.growth_bytes == (2 * GIB if room is None else room)


def test_one_that_starts_has_no_process_on_a_gpu_yet_and_is_known_by_its_unit(host):
    (found,) = read([{"unit": UNIT, "pids": [], "workers": 8}], host)
    assert found.growth_bytes == 8 * 4 * GIB - 6 * GIB


def test_a_process_outside_of_units_counts_and_what_ended_meanwhile_does_not(host):
    found = list(read([{"unit": None, "pids": [pid], "workers": 1} for pid in (40, 41, 2)], host))
    assert found == [Service(name="process 40", workers=1, held_bytes=GIB, room_bytes=None)]
    assert list(read([{"unit": "gone.service", "pids": [], "workers": 1}], host)) == []


def test_one_that_serves_since_long_grows_with_what_it_holds():
    service = Service(name=UNIT, workers=8, held_bytes=80 * GIB, room_bytes=None)
    size, (said,) = reserve([service])
    assert size == 10 * GIB
    assert said == f"10.0 GiB reserved for {UNIT}: it holds 80.0 GiB, 8 workers"
    assert reserve([]) == (0, ())
