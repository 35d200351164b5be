"""Ending what works on a GPU."""

import os
import signal
import subprocess
from contextlib import suppress
from typing import Final

__all__ = ["end"]

KILL_WAIT_S: Final = 5.0  # a process inside the driver may not even die


def end(process: "subprocess.Popen[bytes]") -> bool:
    """Kill the process, a leader, with its whole group; False when it did not go."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return False
    return True
