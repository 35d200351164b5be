"""Builds that really take memory: the gate holds files back before the kernel has to end one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerie.extensions.onhost import gate
from aerie.extensions.onhost.enclosure import Enclosure, enclose
from tests.waiting import PATIENCE_S, until

MB = 1 << 20
# Grows over a while, as a compiler does, and holds it: argv[1] a log, argv[2] how much, argv[3] seconds. It holds it
# for as long as there is a file `hold` beside the log.
HUNGRY = """\
import os, sys, time
log, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
open(log, "a").write("begin\\n")
held = []
for _ in range(10):
    held.append(b"x" * (size // 10))
    time.sleep(seconds / 10)
open(log, "a").write("full\\n")
while os.path.exists(os.path.join(os.path.dirname(log), "hold")):
    time.sleep(0.02)
open(log, "a").write("end\\n")
"""


class Shop:
    """A folder with a gate, and compilers that stand before it."""

    def __init__(self, folder: Path, enclosure: Enclosure, budget_bytes: int, unit_bytes: int,
                 pressure: str = "") -> None:  # fmt: skip
        self.folder, self.enclosure = folder, enclosure
        (folder / "permits").mkdir()
        (folder / "hungry.py").write_text(HUNGRY)
        group = enclosure.group
        told = {
            "budget_bytes": budget_bytes, "unit_bytes": unit_bytes,
            "group": str(group.folder) if group else "", "is_unified": bool(group and group.is_unified),
            "pressure": pressure,
        }  # fmt: skip
        (folder / "gate.json").write_text(json.dumps(told))

    def start(
        self, source: str, size_bytes: int, seconds: float, *, is_gated: bool = True
    ) -> "subprocess.Popen[bytes]":
        log, hungry = str(self.folder / "log"), str(self.folder / "hungry.py")
        compiler = [sys.executable, "-I", "-S", hungry, log, str(size_bytes), str(seconds), "-c", source]
        argv = [sys.executable, "-I", "-S", gate.__file__, *compiler] if is_gated else compiler
        return subprocess.Popen(
            self.enclosure.argv(argv), env={**os.environ, "AERIE_GATE": str(self.folder)}, stderr=subprocess.DEVNULL
        )

    @property
    def units(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "units.jsonl").read_text().splitlines()]

    @property
    def lines(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().split() if log.exists() else []

    @property
    def most_at_once(self) -> int:
        running = most = 0
        for line in self.lines:
            running += {"begin": 1, "full": 0, "end": -1}[line]
            most = max(most, running)
        return most

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Compilers hold their memory until the end of the block."""
        (self.folder / "hold").touch()
        try:
            yield
        finally:
            (self.folder / "hold").unlink()


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"aerie-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def enclosed(name: str) -> Iterator[Enclosure]:
    with enclose(400 * MB, name) as enclosure:
        if enclosure.group is None:
            pytest.skip(enclosure.note)
        yield enclosure


def test_more_files_than_memory_holds_wait_and_none_is_killed(tmp_path: Path, enclosed: Enclosure) -> None:
    # Six of 110 MB at once would take 660 of 400 MB.
    shop = Shop(tmp_path, enclosed, budget_bytes=400 * MB, unit_bytes=130 * MB)
    with shop.holding():
        running = [shop.start(f"{index}.cu", 110 * MB, 0.6) for index in range(6)]
        until("two files at once", lambda: shop.lines.count("full") >= 2, lambda: shop.lines)
        time.sleep(1)  # for which the others wait
    assert [one.wait(PATIENCE_S) for one in running] == [0] * 6
    assert enclosed.killed == 0
    assert enclosed.peak_bytes is not None and 200 * MB < enclosed.peak_bytes <= 400 * MB
    assert shop.most_at_once in (2, 3)
    assert sum(unit["waited_s"] for unit in shop.units) > 1  # type: ignore[misc]


def test_without_the_gate_the_same_files_are_killed(tmp_path: Path, enclosed: Enclosure) -> None:
    shop = Shop(tmp_path, enclosed, budget_bytes=400 * MB, unit_bytes=130 * MB)
    with shop.holding():
        running = [shop.start(f"{index}.cu", 110 * MB, 1.0, is_gated=False) for index in range(6)]
        until("one that was killed", lambda: any(one.poll() for one in running), lambda: shop.lines)
    codes = [one.wait(PATIENCE_S) for one in running]
    assert any(codes)
    assert enclosed.killed > 0


def test_a_file_larger_than_was_measured_is_compiled_again_alone(tmp_path: Path, enclosed: Enclosure) -> None:
    # Two of 250 MB that count as 100: both are let in, the kernel ends one, and that one comes through by itself.
    shop = Shop(tmp_path, enclosed, budget_bytes=400 * MB, unit_bytes=100 * MB)
    with shop.holding():
        running = [shop.start(f"{index}.cu", 250 * MB, 1.0) for index in range(2)]
        until("one that was killed", lambda: enclosed.killed, lambda: shop.lines)
    assert [one.wait(PATIENCE_S) for one in running] == [0, 0]
    assert enclosed.killed > 0
    assert any(unit["again"] for unit in shop.units)


def test_what_was_seen_counts_once_it_is_more_than_was_expected(tmp_path: Path, enclosed: Enclosure) -> None:
    shop = Shop(tmp_path, enclosed, budget_bytes=400 * MB, unit_bytes=50 * MB)
    assert shop.start("first.cu", 250 * MB, 0.2).wait(PATIENCE_S) == 0
    running = [shop.start(f"{index}.cu", 250 * MB, 0.4) for index in range(2)]
    assert [one.wait(PATIENCE_S) for one in running] == [0, 0]
    assert enclosed.killed == 0
    assert shop.most_at_once == 1


def test_one_file_that_exceeds_the_budget_fails_rather_than_the_host(tmp_path: Path, enclosed: Enclosure) -> None:
    shop = Shop(tmp_path, enclosed, budget_bytes=400 * MB, unit_bytes=100 * MB)
    assert shop.start("huge.cu", 600 * MB, 0.5).wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert [unit["again"] for unit in shop.units] == [False, True]


def test_under_pressure_of_memory_files_are_compiled_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "pressure").write_text("some avg10=37.50 avg60=9.00 avg300=2.00 total=1\nfull avg10=20.00\n")
    shop = Shop(tmp_path, Enclosure(), 1 << 40, 1 * MB, pressure=str(tmp_path / "pressure"))
    running = [shop.start(f"{index}.cu", 1 * MB, 0.3) for index in range(3)]
    assert [one.wait(PATIENCE_S) for one in running] == [0] * 3
    assert shop.most_at_once == 1


def test_a_compiler_that_is_killed_gives_its_permit_back(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Enclosure(), budget_bytes=100 * MB, unit_bytes=80 * MB)
    first = shop.start("first.cu", 10 * MB, 600)
    until("a first compiler", lambda: shop.lines)
    second = shop.start("second.cu", 10 * MB, 0.1)
    time.sleep(0.5)
    assert second.poll() is None, "it did not wait for the first one's memory"
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    first.kill()
    assert second.wait(PATIENCE_S) == 0
    first.wait()
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def test_what_compiles_nothing_passes_at_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Enclosure(), budget_bytes=1, unit_bytes=1)
    argv = [sys.executable, "-I", "-S", gate.__file__, sys.executable, "-c", "print('linked')"]
    environment = {**os.environ, "AERIE_GATE": str(shop.folder)}
    assert subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout == "linked\n"
    assert not (tmp_path / "units.jsonl").exists()


PARENT = """\
import subprocess, sys, threading
child = "x = bytearray(200_000_000); print(flush=True); input()"
def run():
    subprocess.run([sys.executable, "-c", child])
threading.Thread(target=run).start()
"""


def test_what_a_thread_started_counts_as_well() -> None:
    # nvcc compiles for several architectures from threads, and their children are not the main thread's.
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin and parent.stdout
        parent.stdout.readline()
        seen = gate.tree_bytes(parent.pid)
        parent.stdin.write(b"\n")
    assert seen > 200_000_000


TWO_AT_ONCE = """\
import subprocess, sys
child = [sys.executable, "-c", "held = b'x' * 100_000_000; print('held', flush=True); input()"]
two = [subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
for one in two:
    one.stdout.readline()
print("both", flush=True)
input()
for one in two:
    one.communicate("\\n")
"""


def times_waited(pid: int) -> int:
    """How often a process has waited so far, for whatever it was."""
    (told,) = re.findall(r"^voluntary_ctxt_switches:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(told)


def test_the_peak_of_a_file_is_of_all_that_worked_on_it_at_the_same_time(tmp_path: Path) -> None:
    # nvcc --threads 2; the kernel tells of the largest process.
    shop = Shop(tmp_path, Enclosure(), budget_bytes=1 << 40, unit_bytes=1 * MB)
    (tmp_path / "two.py").write_text(TWO_AT_ONCE)
    argv = [sys.executable, "-I", "-S", gate.__file__, sys.executable, str(tmp_path / "two.py"), "-c", "a.cu"]
    environment, pipe = {**os.environ, "AERIE_GATE": str(shop.folder)}, subprocess.PIPE
    with subprocess.Popen(argv, env=environment, stdin=pipe, stdout=pipe, text=True) as compiling:
        assert compiling.stdout is not None
        assert compiling.stdout.readline() == "both\n"
        before = times_waited(compiling.pid)
        until("some more looks of the gate", lambda: times_waited(compiling.pid) >= before + 4)
        compiling.communicate("\n")
    assert compiling.returncode == 0
    assert 200_000_000 < shop.units[0]["peak_bytes"] < 300_000_000  # type: ignore[operator]
