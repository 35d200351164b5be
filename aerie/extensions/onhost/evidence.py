"""Whether an installed extension works on a host's GPUs: what is asked (aerie.proof-request/1), what was seen."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = ["REQUEST", "SCHEMA", "Gpu", "Launch", "Library", "Proof", "Request", "Shortfall"]

REQUEST: Final = "aerie.proof-request/1"
SCHEMA: Final = "aerie.proof/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU by NVML's words. arch: its compute capability 12.0 as "sm_120"."""

    uuid: str
    name: str
    arch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """package: as a package index names it. python: the interpreter of its environment. gpus: at least one."""

    package: str
    python: str
    gpus: tuple[Gpu, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"schema": REQUEST, **asdict(self)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Request":
        """What to_dict gave. Raises KeyError and TypeError on anything else."""
        gpus = tuple(Gpu(**row) for row in document["gpus"])
        return cls(package=document["package"], python=document["python"], gpus=gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library with device code. path: below the environment's packages; holds: ("sass sm_120", "ptx sm_90").

    states: what it holds by architecture of the host: "sass", "ptx", "none". is_launched: do GPUs of this host run
    it? Those that are for other cards need no code for these.
    """

    path: str
    holds: tuple[str, ...]
    states: Mapping[str, str]
    is_launched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel that ran on a GPU and what its result is worth.

    gpu: its uuid. max_error: the greatest difference from plain torch in float32, as part of the greatest value there
    (no unit); None where the result is not a number. wall_s: with its reference, and with loading the kernel.
    """

    gpu: str
    kernel: str
    max_error: float | None
    tolerance: float
    wall_s: float

    @property
    def is_right(self) -> bool:
        """Within the tolerance."""
        return self.max_error is not None and self.max_error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why it is not proven. finding: an id of docs/findings.md; stderr: the last lines of a process that failed."""

    finding: str
    seen: str
    expected: str
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All that was seen of one package. No shortfalls: it is proven on every GPU of the request.

    version, torch, python: as installed there; torch is "" where the proof ended before it was imported.
    """

    package: str
    version: str
    python: str
    torch: str
    gpus: tuple[Gpu, ...]
    libraries: tuple[Library, ...]
    launches: tuple[Launch, ...]
    shortfalls: tuple[Shortfall, ...]
    wall_s: float

    @property
    def is_proven(self) -> bool:
        """Does it work on every GPU that was asked for?"""
        return not self.shortfalls

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Proof":
        """What to_dict gave, also after a way through JSON. Raises KeyError and TypeError on anything else."""
        fields = {key: value for key, value in document.items() if key != "schema"}
        fields["gpus"] = tuple(Gpu(**row) for row in document["gpus"])
        fields["libraries"] = tuple(Library(**_tuples(row, ("holds",))) for row in document["libraries"])
        fields["launches"] = tuple(Launch(**row) for row in document["launches"])
        fields["shortfalls"] = tuple(Shortfall(**_tuples(row, ("stderr",))) for row in document["shortfalls"])
        return cls(**fields)


def _tuples(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {**row, **{key: tuple(row[key]) for key in keys}}
