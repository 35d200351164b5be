"""The load gate: a table of loads, real loads of every kind, and the advice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.weights import load, loaders
from aerie.weights.load import Load, judge

GB = 10**9


@pytest.mark.parametrize(
    ("given", "kind", "is_good"),
    [
        (Load(size_bytes=595 * GB, seconds=22, major_faults=900, read_bytes=3 * GB), "warm", True),
        (Load(size_bytes=595 * GB, seconds=60, major_faults=900, read_bytes=595 * GB), "streamed", True),
        # 25 minutes: one thread that touches mapped files one after the other.
        (Load(size_bytes=595 * GB, seconds=1500, major_faults=82_000, read_bytes=595 * GB), "cold", False),
        # SGLang issue 37806: 28 MiB/s, 18,483 major faults a second.
        (Load(size_bytes=704 << 30, seconds=1200, major_faults=22_180_140, read_bytes=34 << 30), "storm", False),
        (Load(size_bytes=595 * GB, seconds=1500, major_faults=9_000_000, read_bytes=None), "storm", False),
        (Load(size_bytes=595 * GB, seconds=1500, major_faults=900, read_bytes=3 * GB), "slow", False),
        (Load(size_bytes=595 * GB, seconds=None, major_faults=0, read_bytes=0), "unknown", True),
        (Load(size_bytes=4_260_000, seconds=30, major_faults=5000, read_bytes=4_260_000), "small", True),
    ],
    ids=["warm", "direct reads", "lazy map", "fault storm", "storm on FUSE", "not the disk", "not measured", "tiny"],
)
def test_what_kind_of_load_it_was(given: Load, kind: str, is_good: bool) -> None:
    verdict = judge(given)
    assert (verdict.kind, verdict.is_good) == (kind, is_good)


def test_the_verdict_has_the_figures_and_what_to_do() -> None:
    given = Load(size_bytes=500 * GB, seconds=1500, major_faults=82, read_bytes=490 * GB, resident_bytes=10 * GB)
    assert judge(given).reason == (
        "500.0 GB in 1500.0 s, 0.33 GB/s: a cold load, 490.0 GB from disk, 82 major faults, 2% in the page cache "
        "before it; expected at least 5 GB/s. Warm the files first, or load by direct reads."
    )
    thrashing = Load(size_bytes=500 * GB, seconds=9000, major_faults=200_000_000, read_bytes=800 * GB)
    assert "pages were read again and again, the memory is too small" in judge(thrashing).reason


READERS = {
    "streamed": "data = open(path, 'rb', buffering=0)\nwhile data.read(1 << 20): pass",
    "storm": """
import mmap, random
view = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
view.madvise(mmap.MADV_RANDOM)
pages = list(range(0, len(view), mmap.PAGESIZE))
random.shuffle(pages)
for page in pages: view[page]
""",
}


@pytest.mark.parametrize(("reader", "kind"), [("streamed", "cold"), ("storm", "storm"), ("streamed", "slow")])
def test_real_loads_are_told_apart_by_what_the_processes_did(
    reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 16 << 20
    monkeypatch.setattr(load, "SMALLEST_BYTES", size)
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(size))
    if kind != "slow":
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    # The reader is a child of a child, as an engine's worker is, and waits to be counted.
    child = f"import os, sys\npath = {str(path)!r}\nos.read(0, 1)\n{READERS[reader]}\nos.write(1, b'x')\nos.read(0, 1)"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)"
    parent += "\nprint('x', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        watch = load.Watch(process.pid)
        process.stdin.write(b"g")
        process.stdin.flush()
        process.stdout.read(1)
        watch.sample()
        running = watch.total()
        process.stdin.write(b"o")
        process.stdin.flush()
        process.stdout.read(1)  # of the parent, which has waited for the reader
        watch.sample()
    assert (watch.total().read_bytes or 0) - (running.read_bytes or 0) < size // 2, "counted once, alive or ended"
    total = watch.total()
    if kind == "cold" and (total.read_bytes or 0) < size:
        pytest.skip("this file system reads from no disk")
    counted = Load(size_bytes=size, seconds=1e6, major_faults=total.major_faults, read_bytes=total.read_bytes)
    assert judge(counted).kind == kind, counted


def test_a_log_says_how_long_its_engine_loaded() -> None:
    vllm = "(EngineCore pid=1) INFO 11-30 10:01:07 [default_loader.py:501] Loading weights took 0.04 seconds\n"
    sglang = "[2026-11-30 TP0] Load weight end. elapsed=79.04 s, type=KimiK25, mem usage=72.33 GB.\n"
    assert load.seconds_in_log(vllm + sglang) == 79.04
    assert load.seconds_in_log(vllm + vllm.replace("0.04", "1548632.63")) == 0.04
    assert load.seconds_in_log("nothing") is None


DIRECT = ["instanttensor", "runai_streamer", "fastsafetensors"]


@pytest.mark.parametrize(
    ("engine", "version", "memory", "names", "flags"),
    [
        ("vllm", "0.33.0", 768, ["prefetch"], ("--safetensors-load-strategy", "prefetch")),
        ("vllm", "0.33.0", 512, DIRECT, ("--load-format", "instanttensor")),
        ("sglang", "0.5.23", 768, ["multithread"], ()),
        ("sglang", "0.5.23", 512, DIRECT, ("--load-format", "instanttensor")),
    ],
)
def test_the_loader_follows_from_engine_version_and_memory(
    engine: str, version: str, memory: int, names: list[str], flags: tuple[str, ...]
) -> None:
    given = loaders.advice(engine, version, size_bytes=554 << 30, memory_bytes=memory << 30)
    assert [loader.name for loader in given.loaders] == names
    assert given.loaders[0].flags == flags


def test_an_engine_without_a_row_is_said_to_have_none() -> None:
    given = loaders.advice("sglang", "0.5.9", size_bytes=554 << 30, memory_bytes=512 << 30)
    assert given.loaders == ()
    assert given.reason == (
        "512.0 GiB of memory, 637.1 GiB needed: 1.15 × the weights; read directly, past the page cache; "
        "no loader is known for sglang 0.5.9"
    )


def test_every_row_of_the_table_has_its_source() -> None:
    assert [row.name for row in loaders.loaders() if not row.source or not row.note] == []
