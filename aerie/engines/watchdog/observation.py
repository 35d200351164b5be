"""What is seen of a service at one moment. Values only."""

from dataclasses import dataclass

__all__ = ["Gpu", "Observation", "Process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the service. state: the letter of /proc/PID/stat; rank: its title where that
    names a rank, else empty.

    progressed: bytes that it read and wrote so far, from disk and from the page cache alike.
    waits_in: the kernel function that it sleeps in, empty where /proc does not tell.
    """

    pid: int
    name: str
    state: str
    rank: str
    progressed: int
    resident_bytes: int
    waits_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of the service. utilisation: 0 to 1; pids: what computes on it, by NVML."""

    index: int
    utilisation: float
    power_w: float
    power_limit_w: float
    used_bytes: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look. at: seconds of a monotonic clock.

    unit: systemd's ActiveState. answers: does the health page answer 200? tokens: generated since the start, by the
    server's counter; running: requests at work. None: it did not tell. generated: what became of the last request of
    our own: True, False (error or no answer in time), None (none was made since tokens last rose).
    gpus: None where NVML does not answer, which is not the same as none. log_lines: so far, without those that are
    repeated while nothing moves. log_hits: ids of patterns.
    """

    at: float
    unit: str
    processes: tuple[Process, ...]
    answers: bool
    tokens: float | None
    running: float | None
    generated: bool | None
    gpus: tuple[Gpu, ...] | None
    log_lines: int
    log_hits: tuple[str, ...] = ()

    @property
    def ranks(self) -> dict[str, Process]:
        """Processes that have a rank in their title and are alive."""
        return {one.rank: one for one in self.processes if one.rank and one.state not in "ZX"}
