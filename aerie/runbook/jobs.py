"""Work that outlives the controller: start it, find it again, wait for it, end it with everything it started.

A job is a folder. The controller writes job.json and environ there and starts supervise.py, which leaves
`supervisor` (who it is), `log`, and at the end result.json. Where systemd runs, the supervisor is a transient
unit; elsewhere it is a session of its own. Everything else is the same for both.
"""

import getpass
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.runbook import supervise
from aerie.runbook.step import write_atomic
from aerie.runbook.supervise import MARKER

__all__ = ["Job", "Result", "find", "kill", "mark_lost", "read_result", "start", "stop", "sweep", "tail", "wait"]

GRACE_S = 10.0  # from asking a job to stop to killing it; an engine needs a few seconds to free its memory
_ENDED_BY_PYTHON = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP, signal.SIGXFSZ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A started job, named so that it cannot be mistaken for another process. unit: "" without systemd."""

    folder: Path
    pid: int
    start_ticks: int
    boot_id: str
    unit: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As journaled with step.started; the folder is in step.intended."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}

    @property
    def is_alive(self) -> bool:
        """Its supervisor runs."""
        return supervise.is_running(self.pid, self.start_ticks, self.boot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the supervisor wrote. outcome: ok, failed, timeout, stalled, stopped or lost."""

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    ended_at: str = ""


def start(folder: Path, argv: Sequence[str], environment: Mapping[str, str], *, unit: str,
          timeout_s: float, stall_s: float | None) -> Job:  # fmt: skip
    """Start the worker `argv` in `folder` under a supervisor. unit: the name it gets where systemd runs."""
    marked = {**environment, MARKER: str(folder)}
    packed = b"\0".join(os.fsencode(f"{name}={value}") for name, value in marked.items())
    # EXCL: a second start in one folder must not take the file from under the first one's supervisor.
    with open(os.open(folder / "environ", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(packed)
    command = [
        sys.executable, "-I", "-S", supervise.__file__,
        str(folder), str(timeout_s), str(stall_s or 0), str(GRACE_S), "--", *argv,
    ]  # fmt: skip
    if (systemd := _systemd()) is not None:
        return _start_unit(folder, command, systemd, unit, timeout_s)
    log = str(folder / "log")
    pid = os.posix_spawn(
        command[0],
        command,
        {MARKER: str(folder)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_ENDED_BY_PYTHON,
    )
    # 0 when it has ended already: then no process has this identity, and its result file speaks for it.
    return Job(folder=folder, pid=pid, start_ticks=supervise.start_ticks(pid) or 0, boot_id=supervise.boot_id())


def find(folder: Path, started: Mapping[str, Any] | None) -> Job | None:
    """The living job in `folder`, or None. started: its step.started data, None when that was never journaled."""
    if started is not None:
        job = Job(folder=folder, **started)
        return job if job.is_alive else None
    try:
        pid, ticks, boot = (folder / "supervisor").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    job = Job(folder=folder, pid=int(pid), start_ticks=int(ticks), boot_id=boot)
    return job if job.is_alive else None


def wait(job: Job, timeout_s: float) -> bool:
    """Wait up to timeout_s for the supervisor's end; whether it has ended."""
    if not job.pid:  # its unit had ended before it could be asked for a process
        return True
    try:
        descriptor = os.pidfd_open(job.pid)
    except ProcessLookupError:
        return True
    try:
        if job.is_alive:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(timeout_s * 1000)
        return not job.is_alive
    finally:
        os.close(descriptor)
        _reap(job.pid)


def stop(job: Job) -> None:
    """Ask the job to stop; its supervisor gives the worker a grace period. Does not wait."""
    _signal(job, signal.SIGTERM)


def kill(job: Job) -> None:
    """Kill the whole job now, its supervisor first, so that no result is written any more."""
    _signal(job, signal.SIGKILL)
    sweep(job.folder, grace_s=0)


def sweep(folder: Path, *, grace_s: float = GRACE_S, unit: str = "") -> None:
    """End whatever a job that has no supervisor any more left running."""
    if unit and (systemd := _systemd()) is not None:
        subprocess.run(["systemctl", *systemd, "stop", unit], check=False, capture_output=True, timeout=60)
    supervise.end_all(str(folder), grace_s)


def mark_lost(folder: Path) -> None:
    """Write the result that no supervisor wrote; one that starts late sees it and ends."""
    write_atomic(folder / "result.json", json.dumps({"outcome": "lost"}).encode())


def read_result(folder: Path) -> Result | None:
    """How the job ended, None while it has not said so."""
    try:
        return Result(**json.loads((folder / "result.json").read_bytes()))
    except FileNotFoundError:
        return None


def tail(folder: Path, lines: int = 10) -> tuple[str, ...]:
    """The last lines of the job's log."""
    try:
        with open(folder / "log", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    return tuple(text.splitlines()[-lines:])


def _systemd() -> list[str] | None:
    """The arguments that reach the service manager, [] for the system's, None where there is none."""
    if not Path("/run/systemd/system").is_dir():
        return None
    if os.geteuid() == 0:
        return []
    # A user's manager ends with the last login, and its units with it, unless the user lingers (loginctl(1)).
    lingers = Path("/var/lib/systemd/linger", getpass.getuser()).exists()
    return ["--user"] if lingers and Path(f"/run/user/{os.geteuid()}/systemd/private").exists() else None


def _start_unit(folder: Path, command: list[str], systemd: list[str], unit: str, timeout_s: float) -> Job:
    log = f"append:{folder / 'log'}"
    properties = {
        "Type": "exec",
        "RuntimeMaxSec": f"{timeout_s + 3 * GRACE_S:.0f}",  # the supervisor's own limit comes first, and says why
        "TimeoutStopSec": f"{2 * GRACE_S:.0f}",
        "KillMode": "control-group",
        "StandardOutput": log,
        "StandardError": log,
    }
    argv = ["systemd-run", *systemd, "--quiet", "--collect", f"--unit={unit}", f"--setenv={MARKER}={folder}"]
    argv += [f"--property={name}={value}" for name, value in properties.items()]
    done = subprocess.run([*argv, *command], check=False, capture_output=True, text=True, timeout=60)
    shown = subprocess.run(
        ["systemctl", *systemd, "show", "--property=MainPID", "--value", unit],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode != 0:
        (folder / "environ").unlink()  # no supervisor comes to read and remove it
        raise AerieError(
            f"unit {unit}", seen=done.stderr.strip()[-500:], expected="a started unit",
            remedy=f"Try it by hand: {shlex.join(argv[:4])} true",
        )  # fmt: skip
    pid = int(shown.stdout.strip() or 0)
    ticks = supervise.start_ticks(pid) if pid else None
    return Job(folder=folder, pid=pid, start_ticks=ticks or 0, boot_id=supervise.boot_id(), unit=unit)


def _signal(job: Job, number: int) -> None:
    if job.is_alive:
        with suppress(ProcessLookupError):  # it may end by itself meanwhile
            os.kill(job.pid, number)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # started by an earlier controller
        os.waitpid(pid, os.WNOHANG)
