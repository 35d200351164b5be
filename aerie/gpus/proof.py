"""What the proof of a host's GPUs found, and what is wrong by it. Pure: no host, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerie.errors import AerieError

__all__ = ["SCHEMA", "Collective", "Gpu", "Latency", "Pair", "Proof", "Rank", "parse"]

SCHEMA = "aerie.gpu-proof/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU and what its kernel wrote. words: that it was to write, 0 where it did not come that far; compile_s: that
    the driver took for the kernel. error: why there is no answer, "" when there is one.
    """

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    compile_s: float = 0.0
    words: int = 0
    wrong_words: int = 0
    error: str = ""
    is_stuck: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with it in words, "" when nothing is."""
        if self.error:
            return self.error + (", and its process cannot be killed" if self.is_stuck else "")
        return f"{self.wrong_words} of {self.words} words are wrong" if self.wrong_words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One direction between two GPUs: `to` takes from `source`, by the copy engine and by a kernel that reads it.

    can_access: the driver says that it can, without which nothing is read by a kernel; rates in GB/s, 10^9 bytes.
    """

    source: int
    to: int
    can_access: bool = False
    native_atomics: bool = False
    words: int = 0
    copy_wrong_words: int = 0
    copy_gb_s: float = 0.0
    read_wrong_words: int | None = None
    read_gb_s: float | None = None
    error: str = ""
    is_stuck: bool = False

    @property
    def name(self) -> str:
        """ "2 to 5": the data's way."""
        return f"{self.source} to {self.to}"

    @property
    def wrong_words(self) -> int:
        """Words that arrived wrong, by either way."""
        return self.copy_wrong_words + (self.read_wrong_words or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Microseconds of one all-reduce of so many bytes, the mean of many that follow each other."""

    bytes: int
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of the all-reduce. wrong: elements that were not the sum; bus_gb_s: as nccl-tests counts it."""

    rank: int
    uuid: str
    nccl: str
    torch: str
    wrong: int
    latency: tuple[Latency, ...]
    bus_gb_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An all-reduce over all GPUs. error: how it ended, "" when every rank came to its end."""

    world: int
    ranks: tuple[Rank, ...]
    error: str
    is_stuck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """start_error: why CUDA does not start at all, "" when it does. pairs: those that were tried, none after one that
    hung. collective: None where it was not asked for, no environment has torch, or a GPU or a pair had failed before.
    """

    start_error: str
    gpus: tuple[Gpu, ...]
    pairs: tuple[Pair, ...]
    collective: Collective | None

    def name(self, index: int) -> str:
        """A GPU as messages call it: "GPU 3 (0000:C1:00.0)"."""
        bus = next((gpu.bus_id for gpu in self.gpus if gpu.index == index and gpu.bus_id), "")
        return f"GPU {index}" + (f" ({bus})" if bus else "")


def parse(document: Mapping[str, Any]) -> Proof:
    """The proof as the host gave it. Raises AerieError for another document."""
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(document["schema"])
        collective = document["collective"]
        return Proof(
            start_error=document["start"]["error"],
            gpus=tuple(_gpu(gpu) for gpu in document["gpus"]),
            pairs=tuple(_pair(pair) for pair in document["pairs"]),
            collective=_collective(collective) if collective else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AerieError(
            "the proof of the GPUs",
            seen=f"{type(error).__name__}: {error}",
            expected=f"a document {SCHEMA}",
            remedy="It was made by another version of aerie: prove the GPUs again.",
        ) from error


def _gpu(found: Mapping[str, Any]) -> Gpu:
    return Gpu(**_known(found, "is_late", "wall_s"))


def _pair(found: Mapping[str, Any]) -> Pair:
    return Pair(source=found["from"], **_known(found, "from", "is_late", "wall_s"))


def _collective(found: Mapping[str, Any]) -> Collective:
    ranks = tuple(
        Rank(**_known(rank, "latency"), latency=tuple(Latency(**one) for one in rank["latency"]))
        for rank in found["ranks"]
    )
    return Collective(world=found["world"], ranks=ranks, error=found["error"], is_stuck=found["is_stuck"])


def _known(found: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in left_out}
