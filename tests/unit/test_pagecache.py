"""Much that is written passes by the page cache: the weights stay in it. In a real memory limit, with real files."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerie import pagecache
from aerie.runbook.keys import file_hash
from aerie.weights.onhost.residency import resident_bytes
from aerie.weights.onhost.warm import WARM_SHARE
from lab import cgroups

MIB = 1 << 20
WEIGHTS, WRITTEN, ROOM = 48 * MIB, 256 * MIB, 112 * MIB
GROUP = f"pagecache-test-{os.getpid()}"

# Weights are read once, then more is written than there is room for, as features are: one file after the other.
CHILD = """
import os, sys
from pathlib import Path
from aerie import pagecache
from aerie.weights.onhost.residency import resident_bytes
weights, folder, passes_by = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "yes"
with open(weights, "rb", buffering=0) as file:
    while file.read(1 << 20): pass
before = resident_bytes(weights)
with pagecache.PassBy(batch_bytes=16 << 20) as passing:
    for number in range(int(sys.argv[4]) >> 22):
        path = folder / f"{number:05d}.ckpt"
        path.write_bytes(os.urandom(4 << 20))
        if passes_by:
            passing.done(path)
print(before, resident_bytes(weights))
"""


@pytest.fixture
def small_room() -> Iterator[list[Path]]:
    """The process lists of a control group with ROOM bytes of memory, page cache included."""
    if os.geteuid() != 0:
        pytest.skip("a control group needs root")
    folders = cgroups.create(GROUP)
    cgroups.limit_memory(GROUP, ROOM)
    if cgroups.memory(GROUP) is None:
        pytest.skip("no control groups that count memory")
    yield [folder / "cgroup.procs" for folder in folders]
    cgroups.remove(GROUP)


def weights_left(folder: Path, room: list[Path], passes_by: str) -> tuple[int, int]:
    """Resident bytes of the weights before and after the writing."""
    weights = folder / "weights"
    weights.write_bytes(os.urandom(WEIGHTS))
    pagecache.release(weights)
    (folder / "features").mkdir()

    def enter() -> None:
        for procs in room:
            procs.write_text(str(os.getpid()))

    argv = [sys.executable, "-c", CHILD, str(weights), str(folder / "features"), passes_by, str(WRITTEN)]
    done = subprocess.run(argv, preexec_fn=enter, capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    return int(before), int(after)


def test_features_that_pass_by_leave_the_weights_resident(tmp_path: Path, small_room: list[Path]) -> None:
    before, after = weights_left(tmp_path, small_room, "yes")
    assert before == WEIGHTS
    assert after >= WARM_SHARE * WEIGHTS


def test_the_same_features_written_plainly_push_the_weights_out(tmp_path: Path, small_room: list[Path]) -> None:
    before, after = weights_left(tmp_path, small_room, "no")
    assert before == WEIGHTS
    assert after < 0.5 * WEIGHTS, "then the test above proves nothing"


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(8 * MIB))
    pagecache.release(path)
    if resident_bytes(path):
        pytest.skip("this file system does not let go of pages")
    return path


def test_hashing_leaves_the_page_cache_as_it_was(on_disk: Path) -> None:
    content = file_hash(on_disk)
    assert resident_bytes(on_disk) == 0
    on_disk.read_bytes()
    assert file_hash(on_disk) == content
    assert resident_bytes(on_disk) == 8 * MIB


def test_a_copied_checkpoint_is_whole_and_not_kept_in_memory(on_disk: Path, tmp_path: Path) -> None:
    source = on_disk.parent / "checkpoint"
    source.mkdir()
    on_disk.rename(source / "model.safetensors")
    (source / "empty").touch()
    pagecache.copy_tree(source, tmp_path / "copy")
    copied = tmp_path / "copy" / "model.safetensors"
    assert (resident_bytes(copied), resident_bytes(source / "model.safetensors")) == (0, 0)
    assert copied.read_bytes() == (source / "model.safetensors").read_bytes()
    assert (tmp_path / "copy" / "empty").read_bytes() == b""


def test_files_wait_for_a_batch_and_go_at_the_end(tmp_path: Path) -> None:
    with pagecache.PassBy(batch_bytes=10 * MIB) as passing:
        paths = [tmp_path / str(number) for number in range(3)]
        for path in paths:
            path.write_bytes(os.urandom(4 * MIB))
            passing.done(path)
        paths[1].unlink()
        (tmp_path / "last").write_bytes(b"x" * 5000)
        passing.done(tmp_path / "last")
    assert [resident_bytes(path) for path in (paths[0], paths[2], tmp_path / "last")] == [0, 0, 0]
