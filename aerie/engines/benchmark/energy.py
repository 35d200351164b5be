"""Energy that the GPUs of this machine take, from NVML's own counter, between two moments.

The counter is the board's since the driver was loaded, in millijoules; idle GPUs of the set count too.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import psutil

from aerie.engines import nvml
from aerie.engines.guard import descendants

__all__ = ["Meter", "opened"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Meter:
    """Counters of the GPUs that a server uses."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        self._handles = nvml.handles(pynvml)

    def gpus_of(self, url: str) -> tuple[int, ...]:
        """Indexes of the GPUs on which the server at `url`, or a process below it, computes; none for another machine.

        All of this machine where NVML does not know the server's processes, as in a container of its own.
        """
        parts = urlsplit(url)
        if parts.hostname not in _LOOPBACK or not (pids := _tree_at(parts.port or 80)):
            return ()
        used = [
            index
            for index, handle in enumerate(self._handles)
            if pids & {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        ]
        return tuple(used or range(len(self._handles)))

    def millijoules(self, gpus: tuple[int, ...]) -> Mapping[int, int]:
        """The counter of each; one that has none (before Volta) is left out."""
        found = {}
        for index in gpus:
            with contextlib.suppress(self._nvml.NVMLError):
                found[index] = int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[index]))
        return found


@contextlib.contextmanager
def opened() -> Iterator[Meter | None]:
    """A meter, or None on a machine without the driver, or in an environment without pynvml (an engine's for CPUs)."""
    with contextlib.ExitStack() as stack:
        try:
            pynvml = stack.enter_context(nvml.opened())
        except ModuleNotFoundError:
            pynvml = None
        yield None if pynvml is None else Meter(pynvml)


def _tree_at(port: int) -> set[int]:
    """The server that listens there and what is below it: vLLM's API server and SGLang's launcher are the topmost."""
    try:
        listening = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        }
    except psutil.Error:
        return set()  # another user's server, and we are not root
    return {pid for top in listening if top for pid in (top, *descendants(top))}
