"""From what was seen to what it is: a pure function of the observations, oldest first."""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerie.engines.watchdog.observation import Gpu, Observation
from aerie.engines.watchdog.patterns import patterns
from aerie.engines.watchdog.spec import Limits

__all__ = ["Diagnosis", "Kind", "diagnose", "last_progress"]

_LEAST_BYTES = 1 << 20  # read, written or taken into memory between two looks; less is polling
_ENDED = ("inactive", "failed", "deactivating")


class Kind(StrEnum):
    """What can be told apart. The first four need nothing."""

    HEALTHY = "healthy"
    LOADING = "loading"
    SLOW_LOAD = "slow-load"
    DOWN = "down"
    STOPPED_WORKER = "stopped-worker"
    CRASHED_RANK = "crashed-rank"
    STUCK_COLLECTIVE = "stuck-collective"
    STALLED_LOAD = "stalled-load"
    STOPPED_DECODE = "stopped-decode"
    MEMORY_HELD = "memory-held"
    WEDGED_GPU = "wedged-gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """reason: with figures, for a person. advice: from the catalogue, by what the log says. pids: whom it concerns."""

    kind: Kind
    reason: str
    advice: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()

    @property
    def is_trouble(self) -> bool:
        """Does it need a step?"""
        return self.kind not in (Kind.HEALTHY, Kind.LOADING, Kind.SLOW_LOAD, Kind.DOWN)


def diagnose(seen: Sequence[Observation], limits: Limits, ours: Collection[int] = ()) -> Diagnosis:
    """What the last of the observations is, in the light of those before it. `seen` is of one start of the service.

    ours: processes that were ever seen in it. Memory that others hold is theirs: another service may have the GPUs now.

    The more certain comes first: a process that is gone or stopped explains that nothing moves, a silent server
    explains nothing.
    """
    now = seen[-1]
    if now.unit in _ENDED:
        found = _after_the_end(seen, limits, ours)
    else:
        found = _stopped(now) or _crashed(seen) or _without_progress(seen, limits) or _well(seen, limits)
    if not found.is_trouble:
        return found
    told = [patterns()[one] for one in now.log_hits]
    advice = tuple(one.remedy for one in told if one.points_to in ("", found.kind.value))
    return Diagnosis(kind=found.kind, reason=found.reason, advice=advice, pids=found.pids)


def last_progress(seen: Sequence[Observation]) -> float:
    """When something last moved, in the clock of the observations: bytes, memory, tokens, or the log."""
    moved = seen[0].at
    for before, after in itertools.pairwise(seen):
        if after.answers and before.answers:  # serving: tokens alone are progress, a log goes on without them
            moves = (after.tokens or 0) > (before.tokens or 0) or bool(after.generated) or not _has_work(after)
        else:
            moves = (
                _volume(after) - _volume(before) >= _LEAST_BYTES
                or after.log_lines > before.log_lines
                or (after.answers and not before.answers)
            )
        moved = after.at if moves else moved
    return moved


def _has_work(now: Observation) -> bool:
    return bool(now.running) or now.generated is False


def _volume(now: Observation) -> int:
    held = sum(gpu.used_bytes for gpu in now.gpus or ())
    return held + sum(one.progressed + one.resident_bytes for one in now.processes)


def _stopped(now: Observation) -> Diagnosis | None:
    stopped = [one for one in now.processes if one.state in "Tt"]
    if not stopped:
        return None
    named = ", ".join(f"{one.name} ({one.pid})" for one in stopped)
    return Diagnosis(
        kind=Kind.STOPPED_WORKER,
        reason=f"stopped by a signal or a debugger: {named}",
        pids=tuple(one.pid for one in stopped),
    )


def _crashed(seen: Sequence[Observation]) -> Diagnosis | None:
    """A rank that was there and is not, while others wait for it. A zombie is not there."""
    now = seen[-1]
    there = {rank: process for one in seen for rank, process in one.ranks.items()}
    gone = sorted(set(there) - set(now.ranks))
    if not gone or not now.ranks:
        return None
    waiting = [f"{rank} ({one.state}{', ' + one.waits_in if one.waits_in else ''})" for rank, one in now.ranks.items()]
    return Diagnosis(
        kind=Kind.CRASHED_RANK,
        reason=f"{', '.join(gone)} gone (process {there[gone[0]].pid}); the others wait: {', '.join(waiting)}",
        pids=tuple(one.pid for one in now.ranks.values()),
    )


def _without_progress(seen: Sequence[Observation], limits: Limits) -> Diagnosis | None:
    now = seen[-1]
    still_s = now.at - last_progress(seen)
    was_ready = any(one.answers for one in seen)
    limit_s = limits.decode_stall_s if was_ready and not _computes(now, limits) else limits.load_stall_s
    if still_s < limit_s:
        return None
    pids = tuple(one.pid for one in now.processes)
    if _is_collective(now, limits):
        what = f"{len(now.gpus or ())} GPUs are busy at {_watts(now.gpus or ())} and nothing moves"
        kind = Kind.STUCK_COLLECTIVE
    elif not was_ready:
        kind = Kind.STALLED_LOAD
        what = "no byte read, no memory taken, no line logged before the first answer"
    else:
        kind = Kind.STOPPED_DECODE
        what = (
            f"it answers its health page, has {_work(now)}, and makes no token"
            if now.answers
            else "it was ready, and answers its health page no more"
        )
    return Diagnosis(kind=kind, reason=f"{what} for {still_s:.0f} s (limit {limit_s:g} s)", pids=pids)


def _is_collective(now: Observation, limits: Limits) -> bool:
    """Several GPUs that spin: busy by NVML, at a fraction of their power. Or the log says so."""
    gpus = [gpu for gpu in now.gpus or () if gpu.pids]
    spins = len(gpus) > 1 and all(_spins(gpu, limits) for gpu in gpus)
    said = any(patterns()[one].points_to == Kind.STUCK_COLLECTIVE for one in now.log_hits)
    return spins or (said and len(now.ranks) > 1)


def _computes(now: Observation, limits: Limits) -> bool:
    """Does a GPU work hard? A long prompt makes no token for a minute and more."""
    return any(gpu.pids and gpu.utilisation >= limits.busy and not _spins(gpu, limits) for gpu in now.gpus or ())


def _spins(gpu: Gpu, limits: Limits) -> bool:
    return gpu.utilisation >= limits.busy and gpu.power_w <= limits.low_power * gpu.power_limit_w


def _after_the_end(seen: Sequence[Observation], limits: Limits, ours: Collection[int]) -> Diagnosis:
    """The service has ended: are its GPUs free? Two looks, for memory is given back a moment after a process ends."""
    now = seen[-1]
    down = Diagnosis(kind=Kind.DOWN, reason=f"the unit is {now.unit}")
    before = seen[-2] if len(seen) > 1 else None
    if now.unit == "deactivating" or before is None or before.unit not in _ENDED:
        return down
    for is_so, kind, what in (
        (lambda gpu: gpu.utilisation >= limits.busy and not gpu.pids, Kind.WEDGED_GPU, "busy with no process"),
        (
            lambda gpu: gpu.used_bytes >= limits.held_bytes and (not gpu.pids or not set(ours).isdisjoint(gpu.pids)),
            Kind.MEMORY_HELD,
            "not free",
        ),
    ):
        found = _both(before, now, is_so)
        if found:
            told = "; ".join(
                f"GPU {gpu.index} {what}: {gpu.utilisation:.0%}, {gpu.power_w:.0f} W, "
                f"{gpu.used_bytes / 2**20:.0f} MiB, processes {', '.join(map(str, gpu.pids)) or 'none'}"
                for gpu in found
            )
            pids = tuple(sorted({pid for gpu in found for pid in gpu.pids}))
            return Diagnosis(kind=kind, reason=f"the unit is {now.unit}; {told}", pids=pids)
    return down


def _both(before: Observation, now: Observation, is_so: Callable[[Gpu], bool]) -> list[Gpu]:
    earlier = {gpu.index for gpu in before.gpus or () if is_so(gpu)}
    return [gpu for gpu in now.gpus or () if gpu.index in earlier and is_so(gpu)]


def _well(seen: Sequence[Observation], limits: Limits) -> Diagnosis:
    now = seen[-1]
    if now.answers:
        return Diagnosis(kind=Kind.HEALTHY, reason=f"{now.tokens:.0f} tokens so far" if now.tokens else "it answers")
    still_s, loading_s = now.at - last_progress(seen), now.at - seen[0].at
    rate = _volume(now) - _volume(seen[0])
    if loading_s < limits.load_stall_s:
        return Diagnosis(kind=Kind.LOADING, reason=f"{rate / 1e9:.1f} GB moved in {loading_s:.0f} s")
    return Diagnosis(
        kind=Kind.SLOW_LOAD,
        reason=f"{rate / 1e9:.1f} GB moved in {loading_s:.0f} s, {rate / 1e9 / loading_s:.2f} GB/s, "
        f"the last of it {still_s:.0f} s ago: slow, but it moves",
    )


def _work(now: Observation) -> str:
    return f"{now.running:.0f} requests at work" if now.running else "a request of the watchdog's unanswered"


def _watts(gpus: Sequence[Gpu]) -> str:
    return f"{min(gpu.power_w for gpu in gpus):.0f} to {max(gpu.power_w for gpu in gpus):.0f} W" if gpus else "unknown"
