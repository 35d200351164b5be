"""Where weights and captured states lie: mounted, roomy, and read as fast as the disk can."""

from pathlib import PurePosixPath

import pytest
from testinfra.host import Host as Connection

from aerie.lock import Lock
from aerie.snapshot import Filesystem, Snapshot, Unknown
from tests.hosts.reading import Measured, known


@pytest.fixture
def missing_folder(snapshot: Snapshot, lock: Lock) -> PurePosixPath | None:
    """The first of the folders down to the locked path that is not there; None when all are."""
    path, folders = PurePosixPath(lock.storage.path), snapshot.storage.folders
    not_seen = Unknown(unknown=f"the folders above {path}")
    steps = [one for one in (*reversed(path.parents[:-1]), path) if str(one) not in snapshot.storage.filesystems]
    return next((one for one in steps if one.name not in known(folders.get(str(one.parent), not_seen))), None)


@pytest.fixture
def filesystem(snapshot: Snapshot, lock: Lock, missing_folder: PurePosixPath | None) -> Filesystem:
    """The file system that the locked path lies on; skips the test where there is no such folder."""
    if missing_folder:
        pytest.skip(f"no folder {missing_folder}: storage.path-missing")
    path, mounts = PurePosixPath(lock.storage.path), snapshot.storage.filesystems
    found = next((mounts[str(one)] for one in (path, *path.parents) if str(one) in mounts), None)
    return known(found or Unknown(unknown=f"no file system below {path}"))


@pytest.mark.finding("storage.path-missing")
def test_the_locked_path_is_a_folder(host: Connection, lock: Lock) -> None:
    is_folder = host.run("test -d %s", lock.storage.path).rc == 0  # one question; host.file asks for the system first
    assert is_folder is True


@pytest.mark.finding("storage.path-missing")
def test_the_locked_path_and_what_is_above_it_exist(missing_folder: PurePosixPath | None) -> None:
    assert [f"no folder {one}" for one in (missing_folder,) if one] == []


@pytest.mark.finding("storage.path-missing")
def test_the_locked_device_is_mounted_at_the_path(filesystem: Filesystem, lock: Lock) -> None:
    if not lock.storage.device:
        pytest.skip("the lock names no device of its own")
    assert filesystem.path == lock.storage.path


@pytest.mark.finding("storage.free-low")
def test_the_path_has_the_locked_space(filesystem: Filesystem, lock: Lock) -> None:
    free_gb = Measured(filesystem.free_bytes // 10**9, "GB")
    assert free_gb >= Measured(lock.storage.min_free_gb, "GB")


@pytest.mark.finding("storage.readahead-low")
def test_the_disk_reads_ahead_as_locked(filesystem: Filesystem, lock: Lock) -> None:
    if filesystem.readahead_kib is None:
        pytest.skip(f"no disk below {filesystem.path} ({filesystem.type})")
    assert Measured(filesystem.readahead_kib, "KiB") >= Measured(lock.storage.readahead_kib, "KiB")


@pytest.mark.finding("storage.scheduler-wrong")
def test_the_disk_has_the_locked_scheduler(filesystem: Filesystem, lock: Lock) -> None:
    if filesystem.scheduler is None:
        pytest.skip(f"no disk below {filesystem.path} ({filesystem.type})")
    assert filesystem.scheduler == lock.storage.scheduler
