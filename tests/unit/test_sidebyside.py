"""Commands side by side: whole outputs, joined ends, and nothing left of them after an interrupt."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from aerie import sidebyside
from aerie.paths import repository
from aerie.sidebyside import Ended, Lane
from tests.waiting import PATIENCE_S, until

# Two lines, the second only when the other command has written its first: they run at the same time.
MEET = """
import pathlib, sys, time
mine, other = (pathlib.Path(name) for name in sys.argv[1:])
print("first", mine.name, flush=True)
mine.touch()
end = time.monotonic() + 60
while not other.exists() and time.monotonic() < end:
    time.sleep(0.01)
print("second", mine.name)
sys.exit(not other.exists())
"""
# A child that hears no Ctrl-C: it has a session and a parent of its own, and names the folder by TMPDIR alone.
STRAY = """
import os, pathlib, signal, subprocess, sys, time
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
def tidy(number, frame):
    print("tidied up", flush=True)
    sys.exit(1)
file = pathlib.Path(sys.argv[1])
def ignore(number, frame):
    file.with_suffix(".asked").touch()
signal.signal(signal.SIGINT, tidy if sys.argv[2] == "tidies" else ignore)
file.with_suffix(".new").write_text(f"{os.getpid()} {stray.pid} {os.environ['TMPDIR']}")
file.with_suffix(".new").rename(file)
while True:
    time.sleep(600)
"""
CONTROLLER = """
import os, sys
from pathlib import Path
from aerie import sidebyside
lanes = [sidebyside.Lane(name=name, argv=[sys.executable, "-c", sys.argv[1], f"{sys.argv[2]}/{name}", sys.argv[3]])
         for name in ("one", "two")]
try:
    list(sidebyside.run(lanes, 2, cwd=Path.cwd(), environment=os.environ, say=print))
except sidebyside.interrupts.Interrupted as end:
    sys.exit(end.exit_code)
"""


def run(lanes: list[Lane], at_once: int) -> list[Ended]:
    return list(
        sidebyside.run(lanes, at_once, cwd=repository(), environment=os.environ, say=lambda line: pytest.fail(line))
    )


def python(name: str, program: str, *arguments: object) -> Lane:
    return Lane(name=name, argv=[sys.executable, "-c", program, *map(str, arguments)])


def test_two_at_a_time_have_whole_outputs_and_their_own_exit_codes(tmp_path: Path) -> None:
    pair = [python("a", MEET, tmp_path / "a", tmp_path / "b"), python("b", MEET, tmp_path / "b", tmp_path / "a")]
    ended = {one.name: one for one in run([*pair, python("c", "import sys; sys.exit(3)")], 2)}
    assert {name: one.code for name, one in ended.items()} == {"a": 0, "b": 0, "c": 3}
    assert ended["a"].output == "first a\nsecond a\n"
    assert ended["b"].output == "first b\nsecond b\n"


def test_one_at_a_time_keeps_the_order_given(tmp_path: Path) -> None:
    lanes = [python(name, f"import time; time.sleep({pause_s})") for name, pause_s in (("slow", 0.3), ("fast", 0))]
    assert [one.name for one in run(lanes, 1)] == ["slow", "fast"]


def test_each_has_a_folder_of_its_own_that_is_gone_at_the_end() -> None:
    program = "import os, pathlib, sys; pathlib.Path(sys.argv[1], 'x').touch(); print(os.environ['TMPDIR'])"
    lanes = [Lane(name=name, argv=[sys.executable, "-c", program, "{folder}"]) for name in ("a", "b")]
    seen = {}
    for one in sidebyside.run(lanes, 2, cwd=repository(), environment=os.environ, say=print):
        assert one.output.strip() == str(one.folder)
        assert (one.folder / "x").exists()
        seen[one.name] = one.folder
    assert len(set(seen.values())) == 2
    assert [folder for folder in seen.values() if folder.exists()] == []


def test_what_a_command_leaves_running_is_ended_with_the_last(tmp_path: Path) -> None:
    program = STRAY.removesuffix("while True:\n    time.sleep(600)\n")
    (one,) = run([python("one", program, tmp_path / "one", "tidies")], 1)
    _, stray, _ = (tmp_path / "one").read_text().split()
    assert one.code == 0
    until("the end of what it left", lambda: not is_alive(int(stray)))


@pytest.mark.parametrize(
    ("number", "more", "how", "code"),
    [
        (signal.SIGINT, 0, "tidies", 130),
        (signal.SIGTERM, 0, "tidies", 143),
        (signal.SIGINT, 1, "ignores", 130),
    ],
    ids=["ctrl-c", "kill", "a-second-one-where-the-first-is-ignored"],
)
def test_an_interrupt_ends_all_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, more: int, how: str, code: int
) -> None:
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, STRAY, tmp_path, how], cwd=repository(), stdout=subprocess.PIPE, text=True
    )
    until("both commands at work", lambda: (tmp_path / "one").exists() and (tmp_path / "two").exists())
    told = [(tmp_path / name).read_text().split() for name in ("one", "two")]
    controller.send_signal(number)
    for _ in range(more):
        for name in ("one.asked", "two.asked"):  # two signals at once would be one
            until(f"{name} to end", (tmp_path / name).exists)
        assert controller.poll() is None, "it did not wait for commands that were not yet ended"
        controller.send_signal(number)
    said, _ = controller.communicate(timeout=2 * PATIENCE_S)
    assert controller.returncode == code
    assert said.count("tidied up") == (2 if how == "tidies" else 0), said
    assert "one, until it was ended:" in said and "two, until it was ended:" in said
    pids = [int(pid) for command, stray, _ in told for pid in (command, stray)]
    assert [pid for pid in pids if is_alive(pid)] == [], said
    assert [folder for _, _, folder in told if Path(folder).exists()] == []


@pytest.mark.parametrize(("cores", "gib", "expected"), [(2, 24, 2), (2, 8, 1), (2, 1, 1), (1, 24, 1), (8, 20, 3)])
def test_as_many_at_a_time_as_there_are_processors_and_memory_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, gib: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    memory = psutil.virtual_memory()._replace(available=gib << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert sidebyside.at_once() == expected


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
