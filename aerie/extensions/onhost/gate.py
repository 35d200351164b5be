"""Stands before a compiler: a file is compiled when memory has room for it, and waits until then.

    AERIE_GATE=FOLDER python3 -I -S gate.py COMPILER ARGUMENTS…

FOLDER holds gate.json (see Gate) and gets units.jsonl, a line for each file compiled. Every kind of build has a
compiler to stand before, whatever runs it (ninja of any version, make, CMake), which is why this is no jobserver; and
behind a compiler cache only what is really compiled comes by. No other process is needed: those that wait stand in a
queue, by a lock, and the first of them looks at memory; a permit is a locked file, so one who is killed gives his back.

A permit is given when nothing is being compiled (a build always goes on), or when what is used, what the others may
still grow to and what this one may take stay below the budget, the host has that much, and the kernel reports no
pressure of memory. What one may take is what was measured before, or the most that was seen in this build, if that is
more. A compiler that the kernel ended for want of memory all the same is run once more, alone.

It is a program of its own, run once for each file: standard library only, and only those parts that start quickly.
"""

import fcntl
import json
import os
import resource
import signal
import sys
import time

__all__ = ["main", "tree_bytes"]

INSIDE = "AERIE_GATE_INSIDE"  # nvcc calls the host's compiler: it must not wait for a permit of its own
POLL_S = 0.25
PRESSURE_PERCENT = 10.0  # of the last 10 s in which something waited for memory; a host at ease shows 0
SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")


class Gate:
    """The state of a build's gate. gate.json has these names; group and pressure are paths, "" where there is none."""

    def __init__(self, folder: str) -> None:
        with open(f"{folder}/gate.json", "rb") as file:
            told = json.load(file)
        self.folder = folder
        self.permits = f"{folder}/permits"
        self.group: str = told["group"]
        self.is_unified: bool = told["is_unified"]
        self.pressure: str = told["pressure"]
        self.budget_bytes: int = told["budget_bytes"]
        self.unit_bytes: int = told["unit_bytes"]

    def enter(self, *, alone: bool = False) -> tuple[int, float]:
        """Wait for a permit; its file descriptor, to be closed at the end, and the seconds that it took.

        alone: when nothing else is being compiled; nothing else begins until it is closed.
        """
        began = time.monotonic()
        # Whoever is alone keeps the queue closed behind himself until he is done.
        queue = os.open(f"{self.folder}/queue", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(queue, fcntl.LOCK_EX)
        while not self._has_room(alone):
            time.sleep(POLL_S)
        waited = time.monotonic() - began
        if alone:
            return queue, waited
        permit = os.open(f"{self.permits}/{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(permit, fcntl.LOCK_EX)
        os.close(queue)
        return permit, waited

    def _has_room(self, alone: bool) -> bool:
        compiling = self._compiling()
        if not compiling:
            return True
        if alone or self._pressure_percent() > PRESSURE_PERCENT:
            return False
        expected = max(self.unit_bytes, self._largest_seen())
        held = [tree_bytes(pid) for pid in compiling]
        growth = sum(max(0, expected - one) for one in held)
        used = self._used_bytes()
        room = min(self.budget_bytes - (sum(held) if used is None else used), _available_bytes())
        return room >= growth + expected

    def _compiling(self) -> list[int]:
        """Who has a permit; those of the dead are removed."""
        found = []
        for name in os.listdir(self.permits):
            descriptor = os.open(f"{self.permits}/{name}", os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(f"{self.permits}/{name}")
            except BlockingIOError:
                found.append(int(name))
            finally:
                os.close(descriptor)
        return found

    def _used_bytes(self) -> int | None:
        """What the group holds and cannot drop."""
        if not self.group:
            return None
        used = int(_read(f"{self.group}/{'memory.current' if self.is_unified else 'memory.usage_in_bytes'}"))
        prefix = "" if self.is_unified else "total_"
        for line in _read(f"{self.group}/memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in (f"{prefix}active_file", f"{prefix}inactive_file"):
                used -= int(value)
        return used

    def _pressure_percent(self) -> float:
        """The share of the last 10 s in which something waited for memory."""
        text = _read(self.pressure) if self.pressure else ""  # PSI can be off; then usage alone counts
        return float(text.split("avg10=", 1)[1].split()[0]) if text else 0.0

    def _largest_seen(self) -> int:
        lines = _read(f"{self.folder}/units.jsonl").splitlines()
        return max((json.loads(line)["peak_bytes"] for line in lines), default=0)

    @property
    def killed(self) -> int:
        """How many processes the kernel ended in the group for want of memory."""
        events = _read(f"{self.group}/{'memory.events' if self.is_unified else 'memory.oom_control'}")
        pairs = (line.split() for line in events.splitlines())
        return sum(int(pair[1]) for pair in pairs if pair[0] == "oom_kill")

    def record(self, **unit: object) -> None:
        """Add a line to units.jsonl, whole also when several do at the same time."""
        with open(f"{self.folder}/units.jsonl", "ab", buffering=0) as file:
            file.write(json.dumps(unit).encode() + b"\n")


def main(argv: list[str]) -> int:
    """Run the compiler, when there is room; its exit code."""
    folder = os.environ.get("AERIE_GATE")
    sources = [one for one in argv[1:] if one.endswith(SOURCES)]
    if folder is None or INSIDE in os.environ or not sources or not {"-c", "-dc", "--compile"} & set(argv):
        os.execvp(argv[0], argv)
    gate = Gate(folder)
    killed = gate.killed
    permit, waited = gate.enter()
    code = _compile(gate, argv, permit, sources[-1], waited, again=False)
    if code != 0 and gate.killed > killed:
        permit, waited = gate.enter(alone=True)
        code = _compile(gate, argv, permit, sources[-1], waited, again=True)
    return code


def _compile(gate: Gate, argv: list[str], permit: int, source: str, waited: float, *, again: bool) -> int:
    began = time.monotonic()
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # kept for the wait below
        pid = os.posix_spawnp(argv[0], argv, {**os.environ, INSIDE: "1"}, setsigmask=before - {signal.SIGCHLD})
        together = 0
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            # With several threads nvcc has several of its compilers at work, and the kernel tells of the largest alone.
            together = max(together, tree_bytes(pid))
            signal.sigtimedwait({signal.SIGCHLD}, POLL_S)
    finally:
        os.close(permit)
    _, status, usage = ended
    code = os.waitstatus_to_exitcode(status)
    peak = max(together, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    gate.record(
        source=os.path.basename(source), code=code, again=again, waited_s=round(waited, 3),
        wall_s=round(time.monotonic() - began, 3), cpu_s=round(usage.ru_utime + usage.ru_stime, 3), peak_bytes=peak,
    )  # fmt: skip
    return code if code >= 0 else 128 - code


def tree_bytes(pid: int) -> int:
    """What a process and those below it hold now."""
    total = int((_read(f"/proc/{pid}/statm").split() or ["0", "0"])[1]) * resource.getpagesize()
    # A child is its thread's: nvcc starts those of several architectures from threads of its own.
    threads = _listed(f"/proc/{pid}/task")
    children = [child for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    return total + sum(tree_bytes(int(child)) for child in children)


def _available_bytes() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _listed(path: str) -> list[str]:
    """The names in a folder, none where it is gone."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read(path: str) -> str:
    """What the file says, "" where it is not there or not to be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
