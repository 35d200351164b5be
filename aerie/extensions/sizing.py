"""How many compilers may run at once: never more than memory holds, whatever number was asked for.

    threads = min(wanted threads, architectures, processors)      # more threads than architectures do nothing
    budget  = min(available − reserved, the tightest cgroup's limit − what it uses) − what is kept free
    jobs    = max(1, min(wanted jobs, processors / threads, budget / (bytes per thread × threads), files))

What is kept free is an eighth of that memory, at least 2 and at most 8 GB, for the linker, ninja and what else grows.
Peaks of a unit are measured maxima, so the sum is a bound. It lies between the two rules of thumb for flash-attn: 70 %
of the memory at 5 GB a thread would give fewer jobs, 80 % more. Upstream's own rule, 5 GB a thread and all of the
memory, ended a host of 96 processors and 880 GB (flash-attention#2493).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # capacity, which reads what is here, runs on hosts without that module's libraries
    from .units import UnitMemory

__all__ = ["Capacity", "Limit", "Sizing", "size"]

GB = 1_024_000_000  # a million of the kernel's kB, as /proc/meminfo and /usr/bin/time count: what was measured is in it
KEPT_FREE_SHARE = 8
KEPT_FREE_LEAST_BYTES = 2 * GB
KEPT_FREE_MOST_BYTES = 8 * GB
_BASIS = {"measured": "measured for these versions", "estimate": "an estimate, not measured for these versions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A cgroup's limit of memory. used_bytes: what it holds and cannot drop, so without its cached files.

    where: the file that says it, for messages.
    """

    where: str
    limit_bytes: int
    used_bytes: int

    @property
    def room_bytes(self) -> int:
        """What may still be taken, at least 0."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a host gives to a build that starts now. processors: at least 1; available_bytes: MemAvailable.

    limits: of this process's cgroup and those above it, none where nothing is limited.
    processors_source: what made them so few, for messages: "affinity", or the file with a quota.
    """

    processors: int
    available_bytes: int
    limits: tuple[Limit, ...] = ()
    processors_source: str = "affinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """jobs and nvcc_threads: at least 1 each. memory_bytes: the most that so many compilers take at once.

    budget_bytes: what they may take, to be enforced as the build's own limit; below memory_bytes only with a warning.
    reasons: sentences, the one that decided the jobs first; warnings: what may go wrong all the same.
    """

    jobs: int
    nvcc_threads: int
    memory_bytes: int
    budget_bytes: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def size(
    capacity: Capacity,
    unit: "UnitMemory",
    *,
    architectures: int = 1,
    wanted_jobs: int | None = None,
    wanted_threads: int = 1,
    reserved_bytes: int = 0,
) -> Sizing:
    """How to build on a host of this capacity. architectures: how many the build compiles for.

    wanted_jobs, wanted_threads: ceilings that somebody asked for, never a way around memory.
    reserved_bytes: what running services may still take of the host's memory beyond what they hold now.
    Raises ValueError for numbers below 1 (reserved_bytes: below 0).
    """
    _check(capacity.processors, architectures, wanted_threads, 1 if wanted_jobs is None else wanted_jobs)
    if reserved_bytes < 0:
        raise ValueError(f"{reserved_bytes} bytes reserved")
    budget, memory_reason = _budget(capacity, reserved_bytes)
    threads, thread_reasons = _threads(capacity, unit, architectures, wanted_threads, budget)
    per_job = unit.bytes_per_thread * threads
    bounds = [
        (budget // per_job, f"memory has room for {budget // per_job}"),
        (max(1, capacity.processors // threads), _processors(capacity, threads)),
    ]
    if unit.units:
        bounds.append((unit.units, f"{unit.package} has {unit.units} files to compile"))
    if wanted_jobs is not None:
        bounds.append((wanted_jobs, f"{wanted_jobs} were asked for"))
    bounds.sort(key=lambda bound: bound[0])
    jobs = max(1, bounds[0][0])
    rest = f" ({'; '.join(text for _, text in bounds[1:])})"
    return Sizing(
        jobs=jobs,
        nvcc_threads=threads,
        memory_bytes=jobs * per_job,
        budget_bytes=budget,
        reasons=(
            f"{jobs} job{'s' * (jobs > 1)}: {bounds[0][1]}{rest}",
            memory_reason,
            f"{_gib(unit.bytes_per_thread)} per file and nvcc thread: {_BASIS[unit.basis]}",
            *thread_reasons,
        ),
        warnings=_warnings(unit, per_job, budget),
    )


def _check(*numbers: int) -> None:
    if min(numbers) < 1:
        raise ValueError(f"processors, architectures, threads and jobs are at least 1: {numbers}")


def _budget(capacity: Capacity, reserved_bytes: int) -> tuple[int, str]:
    """The bytes for compilers, and where they come from."""
    room = max(0, capacity.available_bytes - reserved_bytes)
    said = f"{_gib(capacity.available_bytes)} are available on the host"
    if reserved_bytes:
        said += f", {_gib(reserved_bytes)} of them reserved for running services"
    tightest = min(capacity.limits, key=lambda limit: limit.room_bytes, default=None)
    # Services live in cgroups of their own, so what is reserved for them is no part of this one's room.
    if tightest is not None and tightest.room_bytes < room:
        room = tightest.room_bytes
        said = f"{tightest.where} allows {_gib(tightest.limit_bytes)}, {_gib(tightest.used_bytes)} are used; {said}"
    kept = min(max(room // KEPT_FREE_SHARE, KEPT_FREE_LEAST_BYTES), KEPT_FREE_MOST_BYTES)
    budget = max(0, room - kept)
    return budget, f"{_gib(budget)} for compilers: {said}; {_gib(kept)} are kept free"


def _threads(
    capacity: Capacity, unit: "UnitMemory", architectures: int, wanted: int, budget: int
) -> tuple[int, tuple[str, ...]]:
    reasons = []
    threads = min(wanted, architectures)
    if threads < wanted:
        reasons.append(f"nvcc threads {wanted} → {threads}: each works on an architecture of its own")
    if threads > capacity.processors:
        reasons.append(f"nvcc threads {threads} → {capacity.processors}: no more than processors")
        threads = capacity.processors
    held = max(1, budget // unit.bytes_per_thread)
    if held < threads:
        reasons.append(f"nvcc threads {threads} → {held}: memory does not hold more for a single file")
        threads = held
    return threads, tuple(reasons)


def _processors(capacity: Capacity, threads: int) -> str:
    jobs = max(1, capacity.processors // threads)
    share = f" with {threads} threads each" if threads > 1 else ""
    return f"{capacity.processors} processors ({capacity.processors_source}) carry {jobs}{share}"


def _warnings(unit: "UnitMemory", per_job: int, budget: int) -> tuple[str, ...]:
    if per_job <= budget:
        return ()
    return (
        f"a single file of {unit.package} may take {_gib(per_job)}, {_gib(budget)} are free for it: the build may be "
        "ended for want of memory. Free some, raise the limit, or build on another host and install from the store",
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
