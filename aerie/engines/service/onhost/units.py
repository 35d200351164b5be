"""systemd on this host, as services need it."""

import re
import subprocess
from typing import Final

from aerie.errors import AerieError

__all__ = ["enable", "log_tail", "show", "start", "stop", "systemctl"]

PROPERTIES: Final = "LoadState,ActiveState,SubState,Result,NRestarts,MainPID,ActiveEnterTimestamp,TimeoutStartUSec"
NAMES_ERROR: Final = re.compile(r"\b\w*(Error|Exception): ")
TIMEOUT_S: Final = 4 * 3600  # a unit's own limits come first


def systemctl(*arguments: str, check: bool = True) -> str:
    """What systemctl prints. check: raises AerieError with its words where it fails."""
    done = subprocess.run(
        ["systemctl", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        raise AerieError(
            f"systemctl {' '.join(arguments)}",
            seen=done.stderr.strip()[-300:] or f"exit {done.returncode}",
            expected="done",
            remedy=f"See systemctl status {arguments[-1]}.",
        )
    return done.stdout


def show(unit: str) -> dict[str, str]:
    """What systemd knows of the unit, by property."""
    lines = systemctl("show", f"--property={PROPERTIES}", unit).splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def start(unit: str) -> None:
    """Start it and wait until its readiness probe has ended. Raises AerieError with the last lines of its journal."""
    systemctl("reset-failed", unit, check=False)  # else an earlier series of failures would count against this start
    try:
        systemctl("start", unit)
    except AerieError as error:
        # systemd may be about to start it again by itself: this start has failed, and what it left is to go.
        systemctl("stop", unit, check=False)
        raise AerieError(
            unit,
            seen="\n".join([f"did not start: {error.seen}", *log_tail(unit)]),
            expected="an engine that generates",
            remedy=f"Its whole log: journalctl -u {unit}.",
        ) from error


def stop(unit: str) -> None:
    """Stop it; no process of it is left. One that is not there is stopped."""
    systemctl("stop", unit, check=False)
    systemctl("reset-failed", unit, check=False)


def enable(unit: str, *, at_boot: bool) -> None:
    """Whether it starts at boot."""
    systemctl("enable" if at_boot else "disable", "--quiet", unit)


def log_tail(unit: str, lines: int = 6) -> tuple[str, ...]:
    """The first error that the unit's last start told in its journal, and the last lines."""
    invocation = systemctl("show", "--property=InvocationID", "--value", unit, check=False).strip()
    of_start = [f"_SYSTEMD_INVOCATION_ID={invocation}"] if invocation else [f"--unit={unit}", "--lines=400"]
    argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", *of_start]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return ()
    told = [line[:300] for line in done.stdout.splitlines() if line.strip()]
    first = next((line for line in told[:-lines] if NAMES_ERROR.search(line)), None)
    return (*([first] if first else ()), *told[-lines:])
