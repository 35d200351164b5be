"""What a step will take: said before it runs, from its values, and from what was measured when it ran before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Budget", "Measured", "Share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a step's disk that grows with one value of the profile, as "synthesis.prompts" of 10,000 do."""

    value: str
    count: int
    bytes_each: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The step's newest result by this profile on this host, whatever its values were then: what it returned, and how
    long it took.
    """

    evidence: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one run of a step takes at the most. 0 is "no more than any program".

    folder: where the step writes, "" for the state and the cache folder; share: of disk_bytes; ram_bytes: of the host's
    memory, page cache that must stay included; gpu_bytes: on each GPU, of `gpus` of them; seconds: None where nobody
    can say yet. basis: a sentence for each number, with where it comes from; smaller: what would make it take less
    disk or memory, for a plan that does not fit; gpu_smaller: less of each GPU.

    A runbook's `planning` module has `budget(step, profile, measured) -> Budget | None` (None: what the runbook's file
    says of the step's disk) and `obstacle(step, profile) -> str`, why the step cannot run with these values, "" where
    it can. Both get the whole profile and the step's id; measured: None where the step never came to its end. They are
    no part of a step's key: what is only counted makes no result stale.
    """

    disk_bytes: int = 0
    folder: str = ""
    share: Share | None = None
    ram_bytes: int = 0
    gpu_bytes: int = 0
    gpus: int = 0
    seconds: float | None = None
    basis: tuple[str, ...] = ()
    smaller: tuple[str, ...] = ()
    gpu_smaller: tuple[str, ...] = ()
