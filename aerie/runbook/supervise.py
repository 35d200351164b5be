"""Holds one job: starts the worker, ends it in time, leaves nothing running, and always writes result.json.

    python -I -S supervise.py FOLDER TIMEOUT_S STALL_S GRACE_S -- WORKER ARGV…

It is the leader of a session of its own (or the main process of a systemd unit), so it outlives the controller
that started it. The worker's environment is read from FOLDER/environ and that file removed: it may hold secrets.
SIGTERM asks it to stop. The functions on processes are used by the controller too.

Its start is a part of every step's overhead, so it starts the worker with `os` alone and imports the rest meanwhile;
pathlib and json would double the time to get here (36 against 15 ms, 2 busy cores, 2026-11).
"""

import os
import sys

__all__ = ["MARKER", "boot_id", "end_all", "is_running", "marked", "start_ticks"]

MARKER = "AERIE_JOB"  # in the environment of every process of a job; its value is the job's folder
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def boot_id() -> str:
    """Names this boot of the machine: a process id means nothing in another one."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    status = _status(pid)
    return None if status is None else status[1]


def is_running(pid: int, ticks: int, boot: str) -> bool:
    """The very process that these three name is alive; a later one with the same number is another."""
    return boot == boot_id() and start_ticks(pid) == ticks


def marked(folder: str, *, below: int | None = None) -> set[int]:
    """The living processes of the job in `folder`, by the marker in their environment; never this process itself.

    below: also every descendant of this process id, marked or not.
    """
    wanted = os.fsencode(f"{MARKER}={folder}")
    found, parents = set(), {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or (pid := int(name)) == os.getpid() or (status := _status(pid)) is None:
            continue
        parents[pid] = status[0]
        try:
            environment = _read(f"/proc/{name}/environ")
        except OSError:
            continue  # gone, or of another user, who cannot be running this job
        if wanted in environment.split(b"\0"):
            found.add(pid)
    return found | _descendants(below, parents)


def end_all(folder: str, grace_s: float, *, below: int | None = None) -> None:
    """End every process of the job: ask (SIGTERM), wait up to grace_s, then kill. Returns when none is left."""
    import signal
    import time

    asked: set[int] = set()
    deadline = time.monotonic() + grace_s
    pause_s = 0.01
    while left := marked(folder, below=below):
        if time.monotonic() < deadline:
            _send(left - asked, signal.SIGTERM)
            asked |= left
        else:
            _send(left, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)
        if below == os.getpid():
            _reap()


def _status(pid: int) -> tuple[int, int] | None:
    """Parent and start time of a living process."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    # After the name in brackets come state (field 3), parent (4) … start time (22); see proc(5).
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def _descendants(root: int | None, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    newest = {root} if root is not None else set()
    while newest := {pid for pid, parent in parents.items() if parent in newest} - found:
        found |= newest
    return found


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it ended by itself meanwhile


def _reap(worker: int = 0) -> int | None:
    """Collect every child that ended; the wait status of `worker` when it is among them."""
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                status = ended[1]
    except ChildProcessError:
        pass
    return status


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _become_subreaper() -> bool:
    # Orphans of the job then become children of this process: none gets away by setsid or a changed environment.
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _progress(folder: str) -> bytes:
    """What the step said last, without the time at which it said so ("at" is the first key, see step.Context)."""
    try:
        return _read(f"{folder}/progress.json").partition(b",")[2]
    except OSError:
        return b""


def _block_signals() -> set[int]:
    """The signals that are waited for, from now on pending until they are."""
    import signal

    signals: set[int] = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    return signals


def _watch(folder: str, worker: int, signals: set[int], timeout_s: float, stall_s: float) -> tuple[str, int | None]:
    """Wait for the worker's end, or for a reason to end it: the outcome, and the wait status when it ended."""
    import signal
    import time

    now = time.monotonic()
    deadline, changed, last = now + timeout_s, now, b""
    heard = None
    while True:
        # Before the first wait too: a worker that ended before its signal was blocked is heard of only here.
        if (status := _reap(worker)) is not None:
            return ("ok" if status == 0 else "failed"), status
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            return "stopped", None
        if now >= deadline:
            return "timeout", None
        if (said := _progress(folder)) != last:
            changed, last = now, said
        elif stall_s and now - changed >= stall_s:
            return "stalled", None
        until = min(deadline, now + min(stall_s / 4, 5)) if stall_s else deadline
        heard = signal.sigtimedwait(signals, max(0.0, until - now))
        now = time.monotonic()


def _write_result(folder: str, outcome: str, status: int | None) -> None:
    import time

    exit_code = number = "null"
    if status is not None and os.WIFEXITED(status):
        exit_code = str(os.WEXITSTATUS(status))
    elif status is not None:
        number = str(os.WTERMSIG(status))
    ended_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f'{{"outcome": "{outcome}", "exit_code": {exit_code}, "signal": {number}, "ended_at": "{ended_at}"}}\n'
    _write(f"{folder}/result.json", text.encode(), durable=True)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes, *, durable: bool) -> None:
    # As step.write_atomic, which is out of reach here: this file is run alone, without the package.
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(temporary, path)


def main(arguments: list[str]) -> None:
    """See the module."""
    folder = arguments[0]
    timeout_s, stall_s, grace_s = (float(text) for text in arguments[1:4])
    if os.path.exists(f"{folder}/result.json"):
        return  # this attempt was given up as lost before it began
    environment = dict(entry.split(b"=", 1) for entry in _read(f"{folder}/environ").split(b"\0"))
    os.unlink(f"{folder}/environ")
    argv = arguments[arguments.index("--") + 1 :]
    me = os.getpid()
    _write(f"{folder}/supervisor", f"{me} {start_ticks(me)} {boot_id()}\n".encode(), durable=False)
    os.chdir(f"{folder}/scratch")  # what a library drops where it stands is removed with it
    worker = os.posix_spawn(argv[0], argv, environment, setpgroup=0)
    signals = _block_signals()
    is_subreaper = _become_subreaper()
    outcome, status = _watch(folder, worker, signals, timeout_s, stall_s)
    if outcome not in ("ok", "failed") or _has_children() or not is_subreaper:
        end_all(folder, grace_s, below=me)
    _write_result(folder, outcome, status)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # all is written; the interpreter's own end would take 3 ms more
