"""Residency and warming: real files, the real page cache."""

import os
from pathlib import Path

import pytest

from aerie.errors import AerieError
from aerie.weights.onhost import residency, warm

SIZE = 8 << 20


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A folder with two files on disk, neither in the page cache."""
    for name in ("a.safetensors", "b.safetensors"):
        write_cold(tmp_path / name)
    if residency.resident_bytes(tmp_path / "a.safetensors") == SIZE:
        pytest.skip("this file system does not let go of pages")
    return tmp_path


def write_cold(path: Path) -> None:
    path.write_bytes(os.urandom(SIZE))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.parametrize("by_mincore", [False, True], ids=["cachestat", "mincore"])
def test_residency_counts_what_was_read_and_nothing_else(cold: Path, by_mincore: bool) -> None:
    path = cold / "a.safetensors"
    assert residency.resident_bytes(path, by_mincore=by_mincore) == 0
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        file.read(1 << 20)
    assert residency.resident_bytes(path, by_mincore=by_mincore) == 1 << 20


def test_the_last_page_counts_as_far_as_the_file_goes(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 5000)
    assert residency.resident_bytes(tmp_path / "short") == 5000
    assert residency.resident_bytes(tmp_path / "short", by_mincore=True) == 5000


def test_a_missing_file_has_nothing_resident_and_an_empty_one_neither(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert residency.measure(tmp_path, {"gone": 10, "empty": 0}) == {"gone": 0, "empty": 0}
    assert residency.resident_bytes(tmp_path / "empty", by_mincore=True) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's place")
def test_the_pages_of_another_users_file_are_not_guessed(tmp_path: Path) -> None:
    path = Path("/usr/bin/env")
    os.seteuid(65534)
    try:
        with pytest.raises(AerieError, match="Ask as root"):
            residency.resident_bytes(path)
    finally:
        os.seteuid(0)


def test_warming_reads_what_is_missing_and_proves_it(cold: Path) -> None:
    (cold / "b.safetensors").read_bytes()
    files = {"a.safetensors": SIZE, "b.safetensors": SIZE}
    seen: list[int] = []
    done = warm.warm(cold, files, progress=seen.append)
    assert (done.state, done.reason, done.resident_bytes, done.read_bytes) == ("warm", "", 2 * SIZE, SIZE)
    assert seen[-1] == 2 * SIZE
    assert warm.warm(cold, files).read_bytes == 0


def test_a_host_with_too_little_memory_is_left_alone_with_the_reason(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "memory_bytes", lambda: SIZE)
    done = warm.warm(cold, {"a.safetensors": SIZE})
    assert (done.state, done.resident_bytes, done.read_bytes) == ("skipped", 0, 0)
    assert done.reason == "0.0 GiB of memory, 0.0 GiB needed: 1.15 × the weights"


@pytest.mark.parametrize(
    ("mode", "memory", "reason"),
    [
        ("auto", 115 << 30, None),
        ("auto", 114 << 30, "114.0 GiB of memory, 115.0 GiB needed: 1.15 × the weights"),
        ("yes", 1 << 30, None),
        ("no", 1 << 50, "not wanted"),
    ],
)
def test_when_a_host_is_warmed(mode: warm.Mode, memory: int, reason: str | None) -> None:
    assert warm.why_not(mode, 100 << 30, memory) == reason


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(AerieError, match="folder"):
        warm.warm(tmp_path, {"folder": 5})


def test_what_the_progress_raises_ends_the_readers(cold: Path) -> None:
    def stop(resident: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm.warm(cold, {"a.safetensors": SIZE}, progress=stop)


def test_memory_is_the_hosts_or_what_a_control_group_leaves(tmp_path: Path) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal:       1024 kB\nMemFree: 1 kB\n")
    cgroup.write_text("0::/nowhere/at-all\n")
    assert warm.memory_bytes(meminfo, cgroup) == 1 << 20
