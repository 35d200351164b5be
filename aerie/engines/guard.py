"""Runs one program and leaves no process of its tree behind, whoever dies first. Standard library only.

    python -I guard.py GRACE_S PARENT PROGRAM ARGUMENT…

PARENT is the process id of who starts it. The tree is what the program started, however it detached itself: the guard
is the reaper of all orphans below it. It ends the tree on SIGTERM, when the program ends, and when the guard's parent
dies (by kill -9 too): SIGTERM to the program, GRACE_S seconds, then SIGKILL to whatever is left. Exit status: the
program's, as a shell gives it. TMPDIR and the working folder are one of its own, removed at the end: killed engines
leave their sockets there, and the path of a socket must be short (107 bytes).

It is a program of its own because an engine has children of its own (vLLM: EngineCore, and a worker below it) that
outlive a killed parent, and because a killed parent cannot clean up.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from types import FrameType

__all__ = ["descendants", "main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """Live processes below `root`, parents before children; zombies are left out, their children are not."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                # The name in parentheses may hold spaces and parentheses: what follows the last one is fixed.
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in "ZX":
            zombies.add(int(name))
    found, queue = [], [root]
    for pid in queue:
        queue.extend(children.get(pid, ()))
        if pid != root and pid not in zombies:
            found.append(pid)
    return found


class _Stop(Exception):
    """SIGTERM came, from our user or because our parent died."""


def _raise_stop(_number: int, _frame: FrameType | None) -> None:
    # At once: a second SIGTERM on the heels of the first ended the guard itself, and left the tree behind.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


def main(argv: list[str]) -> int:
    """Run `argv[2:]` under guard, with `argv[0]` seconds of grace, for the process `argv[1]`; returns its status."""
    grace_s, parent, command = float(argv[0]), int(argv[1]), argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle, once
    temporary, program = tempfile.mkdtemp(prefix="aerie-"), None
    status = -signal.SIGTERM
    try:
        signal.signal(signal.SIGTERM, _raise_stop)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == parent:  # else it died before the line above, perhaps before we began
            # Should the guard itself be killed, the program goes too; only its orphans would be left.
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                cwd=temporary,
                env=os.environ | {"TMPDIR": temporary},
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
            status = program.wait()
        # Still inside: a stop that comes as the program ends by itself must not end us before its tree.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Stop:
        if program:
            program.terminate()
            try:
                status = program.wait(grace_s)
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
    _end_tree()
    shutil.rmtree(temporary, ignore_errors=True)
    return status if status >= 0 else 128 - status


def _end_tree() -> None:
    """Kill all below until none is left, reaped too: every orphan becomes our child."""
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
