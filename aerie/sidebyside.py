"""Commands side by side: each with a folder and an output of its own, and nothing left of any after an interrupt."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .runbook import interrupts

__all__ = ["Ended", "Lane", "at_once", "run"]

POLL_S = 0.2
STORY_EVERY_S = 30.0
# After Ctrl-C: a lab with its hosts is down within 15 s on a quiet machine.
GRACE_S = 90.0
KILL_S = 5.0
# For each command. Two lab hosts have 2 GiB each, two vLLM servers with a tiny model 1 GiB for their cache each.
MEMORY_BYTES = 6 << 30
LOG_TAIL = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A command to run. argv: {folder} in it becomes its own folder, which TMPDIR names too."""

    name: str
    argv: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that ended. code: negative for a signal; output: all it wrote; folder: its own, gone at the end."""

    name: str
    code: int
    wall_s: float
    output: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    name: str
    process: "subprocess.Popen[bytes]"
    folder: Path
    started: float

    @property
    def log(self) -> Path:
        return self.folder / "output"

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def at_once() -> int:
    """How many commands this machine has the processors and the free memory for; at least 1."""
    import psutil

    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(psutil.virtual_memory().available) // MEMORY_BYTES))


def run(
    lanes: Sequence[Lane],
    lanes_at_once: int,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Ended]:
    """Start the commands in their order, so many at a time; what each gave, in the order in which they end.

    Every half minute `say` gets a line of how far they are. Ctrl-C and SIGTERM interrupt them as Ctrl-C in a terminal
    would, wait for them to tidy up, kill what is left, say what they had written, and raise Interrupted; a second one
    kills at once. Their folders are removed at the end.
    """
    waiting, running = list(lanes), list[_Running]()
    root = Path(tempfile.mkdtemp(prefix="aerie-"))
    said = time.monotonic()
    with interrupts.catch() as interrupted:
        try:
            while (waiting or running) and not interrupted.count:
                while waiting and len(running) < lanes_at_once:
                    running.append(_start(waiting.pop(0), root, cwd, environment))
                time.sleep(POLL_S)
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    yield _ended(one)
                if running and time.monotonic() - said >= STORY_EVERY_S:
                    said = time.monotonic()
                    say(_story(running))
            if interrupted.count:
                _interrupt(running, interrupted)
        finally:
            _end(running, root)
            for one in running:
                say(f"{one.name}, until it was ended:\n{one.output()}")
            shutil.rmtree(root, ignore_errors=True)
    if interrupted.count:
        raise interrupts.Interrupted("interrupted", interrupted.exit_code)


def _start(lane: Lane, root: Path, cwd: Path, environment: Mapping[str, str]) -> _Running:
    folder = root / lane.name
    folder.mkdir()
    with open(folder / "output", "wb") as log:
        process = subprocess.Popen(
            [word.replace("{folder}", str(folder)) for word in lane.argv],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=cwd,
            env={**environment, "TMPDIR": str(folder)}, start_new_session=True,
        )  # fmt: skip
    return _Running(name=lane.name, process=process, folder=folder, started=time.monotonic())


def _ended(one: _Running) -> Ended:
    return Ended(
        name=one.name,
        code=one.process.returncode,
        wall_s=time.monotonic() - one.started,
        output=one.output(),
        folder=one.folder,
    )


def _story(running: Sequence[_Running]) -> str:
    """How far each is by the last percentage that pytest wrote, and for how long it has run."""
    parts = []
    for one in running:
        with open(one.log, "rb") as log:
            log.seek(max(0, one.log.stat().st_size - LOG_TAIL))
            shares = re.findall(r"\[ *(\d+)%\]", log.read().decode(errors="replace"))
        share = f" {shares[-1]} %" if shares else ""
        parts.append(f"{one.name}{share} after {time.monotonic() - one.started:.0f} s")
    return f"{time.strftime('%H:%M:%S')}  {', '.join(parts)}"


def _interrupt(running: Sequence[_Running], interrupted: interrupts.Interrupts) -> None:
    """Give each command, with what it started and did not give a session of its own, the signal of a Ctrl-C."""
    for one in running:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGINT)
    end = time.monotonic() + GRACE_S
    while interrupted.count < 2 and time.monotonic() < end and any(one.process.poll() is None for one in running):
        time.sleep(POLL_S)


def _end(running: Sequence[_Running], root: Path) -> None:
    """Kill every process that is left of these commands."""
    for one in running:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
    end = time.monotonic() + KILL_S
    while left := _belonging(root):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return  # they wait for a disk or a device, and end when that answers
        time.sleep(POLL_S)


def _belonging(root: Path) -> set[int]:
    """The living processes that name the folder in their environment or arguments, of whatever session or parent."""
    import psutil

    word, found = f"{root}/", set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = (*process.environ().values(), *process.cmdline())
            if process.pid != os.getpid() and any(word in one for one in words):
                found.add(process.pid)
    return found
