"""Where the limit of a build is set, by the version of control groups, and what is said where none can be."""

from pathlib import Path

import pytest

from aerie.extensions.onhost import enclosure
from aerie.extensions.onhost.enclosure import enclose


@pytest.fixture(autouse=True)
def _files_are_no_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel removes a group with the files in it; a folder of files stays, and is not waited for.
    monkeypatch.setattr(enclosure, "WAIT_S", 0.1)


def tree(root: Path, *, cgroup: str, mount: str, files: dict[str, str]) -> Path:
    """A host's /proc and /sys/fs/cgroup, as far as they are looked at."""
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mount, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def version_2(root: Path, *, controllers: str = "cpu memory\n") -> Path:
    return tree(
        root,
        cgroup="0::/work\n",
        mount="30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        files={
            "sys/fs/cgroup/work/cgroup.controllers": controllers,
            "sys/fs/cgroup/work/cgroup.subtree_control": "",
            "sys/fs/cgroup/cgroup.controllers": "cpu\n",
        },
    )


def test_in_version_2_a_group_below_this_ones_gets_the_limit(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    with enclose(5_000_000, "aerie-build-x", root=root) as made:
        folder = root / "sys/fs/cgroup/work/aerie-build-x"
        assert made.limited_by == "/sys/fs/cgroup/work/aerie-build-x/memory.max"
        assert (folder / "memory.max").read_text() == "5000000"
        assert (root / "sys/fs/cgroup/work/cgroup.subtree_control").read_text() == "+memory"
        (folder / "memory.peak").write_text("4000000\n")
        (folder / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n")
        (folder / "memory.pressure").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        assert (made.peak_bytes, made.killed, made.pressure) == (4_000_000, 2, str(folder / "memory.pressure"))


def test_in_version_1_swap_does_not_come_on_top(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        cgroup="4:memory:/work\n0::/\n",
        mount="31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        files={"sys/fs/cgroup/memory/work/cgroup.procs": ""},
    )
    with enclose(5_000_000, "aerie-build-x", root=root) as made:
        folder = root / "sys/fs/cgroup/memory/work/aerie-build-x"
        assert made.limited_by == "/sys/fs/cgroup/memory/work/aerie-build-x/memory.limit_in_bytes"
        (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        assert (made.killed, made.pressure) == (1, "/proc/pressure/memory")


@pytest.mark.parametrize("case", ["no-controller", "not-allowed", "no-groups"])
def test_who_may_not_make_one_is_told_and_builds_all_the_same(tmp_path: Path, case: str) -> None:
    root = version_2(tmp_path, controllers="cpu\n" if case == "no-controller" else "memory\n")
    if case == "no-groups":
        (root / "proc/self/mountinfo").write_text("")
    if case == "not-allowed":  # as the kernel refuses it where the group has processes
        control = root / "sys/fs/cgroup/work/cgroup.subtree_control"
        control.unlink()
        control.mkdir()
    with enclose(5_000_000, "aerie-build-x", root=root) as made:
        assert made.group is None
        assert made.limited_by == ""
        assert made.note.startswith("No limit of memory could be set around the build (")
        assert made.argv(["true"]) == ["true"]
    assert not (root / "sys/fs/cgroup/work/aerie-build-x").exists()
