"""A container's own control group of version 2, which holds processes: cleared for a build, given back afterwards."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerie.extensions.onhost import clearing, enclosure
from aerie.extensions.onhost.clearing import LEAF
from aerie.extensions.onhost.enclosure import enclose

MOUNT = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
NAME = "aerie-build-x"


class Kernel:
    """What Linux does when files of control groups are written, in a tree of plain files.

    A process is in one group; a group with processes hands nothing down (EBUSY), nor does one that hands down take any.
    """

    def __init__(self, top: Path, *, stuck: str = "", full: bool = False) -> None:
        self.top, self.stuck, self.full = top, stuck, full
        self.said: list[str] = []

    def write(self, file: Path, text: str) -> None:
        self.said.append(f"{file.relative_to(self.top)} {text}")
        if file.name == "cgroup.procs":
            self.move(file, text)
        elif text == "+memory" and (self.full or pids(file.parent)):
            raise OSError(errno.EBUSY, "Device or resource busy")
        else:
            file.write_text("memory\n" if text == "+memory" else "")

    def move(self, file: Path, pid: str) -> None:
        if (file.parent / "cgroup.subtree_control").is_file() and "memory" in handed_down(file.parent):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if pid == self.stuck:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        for other in self.top.rglob("cgroup.procs"):
            other.write_text("".join(f"{one}\n" for one in other.read_text().split() if one != pid))
        with open(file, "a") as procs:
            procs.write(f"{pid}\n")


def pids(group: Path) -> list[str]:
    procs = group / "cgroup.procs"
    return procs.read_text().split() if procs.exists() else []


def handed_down(group: Path) -> str:
    return (group / "cgroup.subtree_control").read_text()


@pytest.fixture
def stranger() -> Iterator[str]:
    """A process of another session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        yield str(child.pid)
        child.kill()


@pytest.fixture
def host(tmp_path: Path, stranger: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container without systemd: its group is the top that it sees, and holds its first process and this one."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for module in (enclosure, clearing):  # files stay where groups would go with the files in them
        monkeypatch.setattr(module, "WAIT_S", 0.1)
    of_host(tmp_path, "", [stranger, str(os.getpid())])
    monkeypatch.setattr(clearing, "write", Kernel(tmp_path / "sys/fs/cgroup").write)
    return tmp_path


def of_host(root: Path, path: str, processes: list[str]) -> Path:
    group = root / "sys/fs/cgroup" / path
    files = {
        "proc/self/cgroup": f"0::/{path}\n",
        "proc/self/mountinfo": MOUNT,
        f"sys/fs/cgroup/{path}/cgroup.controllers": "cpu memory\n",
        f"sys/fs/cgroup/{path}/cgroup.subtree_control": "",
        f"sys/fs/cgroup/{path}/cgroup.procs": "".join(f"{pid}\n" for pid in processes),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return group


def test_a_containers_processes_make_room_for_the_limit_and_come_back(host: Path, stranger: str) -> None:
    top = host / "sys/fs/cgroup"
    before = pids(top)
    with enclose(5_000_000, NAME, root=host) as made:
        assert made.note == ""
        assert made.limited_by == f"/sys/fs/cgroup/{NAME}/memory.max"
        assert (top / NAME / "memory.max").read_text() == "5000000"
        assert (pids(top), pids(top / LEAF), handed_down(top)) == ([], before, "memory\n")
        (top / NAME / "memory.max").unlink()  # as the kernel does when the group is removed
    assert (pids(top), pids(top / LEAF), handed_down(top)) == (before, [], "")


def test_a_second_build_finds_itself_in_the_leaf_and_the_last_one_gives_back(host: Path) -> None:
    top = host / "sys/fs/cgroup"
    with enclose(5_000_000, NAME, root=host):
        (host / "proc/self/cgroup").write_text(f"0::/{LEAF}\n")
        (top / LEAF / "cgroup.controllers").write_text("memory\n")
        with enclose(6_000_000, "aerie-build-y", root=host) as second:
            assert second.limited_by == "/sys/fs/cgroup/aerie-build-y/memory.max"
            (top / "aerie-build-y" / "memory.max").unlink()
        assert handed_down(top) == "memory\n" and pids(top) == []  # the first one still needs it
        (top / NAME / "memory.max").unlink()
    assert handed_down(top) == "" and len(pids(top)) == 2


def test_a_group_of_a_host_is_cleared_of_this_session_only(host: Path, stranger: str) -> None:
    group = of_host(host, "jobs/work", [str(os.getpid())])
    with enclose(5_000_000, NAME, root=host) as made:
        assert made.limited_by == f"/sys/fs/cgroup/jobs/work/{NAME}/memory.max"
        assert pids(group / LEAF) == [str(os.getpid())]
        (group / NAME / "memory.max").unlink()
    of_host(host, "jobs/work", [str(os.getpid()), stranger])
    with enclose(5_000_000, NAME, root=host) as made:
        assert made.group is None
        assert "/sys/fs/cgroup/jobs/work/cgroup.procs is not empty, and 1 of its 2 processes are of other" in made.note
    assert len(pids(group)) == 2


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("user", "only root may move what is in it"),
        ("foreign", "holds processes of another container"),
        ("stuck", "Operation not permitted"),
        ("refused", "Device or resource busy"),
    ],
)
def test_where_it_cannot_be_done_the_note_says_why_and_everything_is_as_before(
    host: Path, stranger: str, monkeypatch: pytest.MonkeyPatch, case: str, said: str
) -> None:
    top = host / "sys/fs/cgroup"
    if case == "user":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if case == "foreign":
        (top / "cgroup.procs").write_text(f"0\n{os.getpid()}\n")
    kernel = Kernel(top, stuck=stranger if case == "stuck" else "", full=case == "refused")
    monkeypatch.setattr(clearing, "write", kernel.write)
    before = sorted(pids(top))
    with enclose(5_000_000, NAME, root=host) as made:
        assert made.group is None and said in made.note
        assert made.argv(["true"]) == ["true"]
    assert (sorted(pids(top)), handed_down(top)) == (before, "")
    assert not (top / NAME).exists()


def test_what_a_killed_build_left_is_given_back_by_the_next(host: Path) -> None:
    top = host / "sys/fs/cgroup"
    own = enclosure._own(host)[0]
    clearing.hand_down(own, is_containers=True)
    (host / "proc/self/cgroup").write_text(f"0::/{LEAF}\n")
    with enclose(5_000_000, NAME, root=host) as made:
        assert made.limited_by == f"/sys/fs/cgroup/{NAME}/memory.max"
        (top / NAME / "memory.max").unlink()
    assert len(pids(top)) == 2
