"""What a slot's unit runs: one way to serve a model, as JSON on the host.

A model has two slots, blue and green, each with a unit and a port of its own on the loopback. One of them is live: the
front leads to it. A change fills the other slot, and the slot before stays as it was, for the way back.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aerie.errors import AerieError

__all__ = [
    "CONFIGURATION",
    "FRONT",
    "SLOTS",
    "STATE",
    "Key",
    "Service",
    "Slot",
    "Weights",
    "file_of",
    "load",
    "other",
    "parse",
    "unit_of",
]

SCHEMA: Final = "aerie.service/1"
CONFIGURATION: Final = Path("/etc/aerie/engine")
STATE: Final = Path("/var/lib/aerie/engine")
FRONT: Final = "aerie-front.service"

Slot = Literal["blue", "green"]
SLOTS: Final[tuple[Slot, Slot]] = ("blue", "green")

Key = Literal["environment", "config"]
"""How an engine takes its key: from the variable VLLM_API_KEY, or from a file that --config names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A staged model that the service reads: the target, and the drafter where it has one."""

    model: str
    folder: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One way to serve `model`.

    program: without host and port, which are the slot's; environment: what is set beyond the host's engine.env.
    gpus: that must be there, healthy and idle; 0 on a CPU. draft_counter: name in /metrics that rises with every verify
    step, "" without a drafter. front: "address:port" that clients use; port: of blue, the next one is green's.
    beside_bytes: host memory that it takes beside another one; 0: it needs the GPUs, of which there is one set.
    """

    model: str
    engine: str
    version: str
    program: tuple[str, ...]
    environment: Mapping[str, str]
    key: Key
    weights: tuple[Weights, ...]
    gpus: int
    draft_counter: str
    front: str
    port: int
    beside_bytes: int
    ready_timeout_s: int

    @property
    def drafter(self) -> str:
        """The name of the drafter, "" without one."""
        return self.weights[1].model if len(self.weights) > 1 else ""

    @property
    def words(self) -> str:
        """ "vllm 0.32.0, drafter d1, k 3"."""
        drafting = f"drafter {self.drafter}, k {self.draft_tokens}" if self.drafter else "no drafter"
        return f"{self.engine} {self.version}, {drafting}"

    @property
    def flags(self) -> tuple[str, ...]:
        """The engine's own arguments: those behind the interpreter's and the module."""
        starts = (place for place, word in enumerate(self.program) if word.startswith("--"))
        return self.program[next(starts, len(self.program)) :]

    @property
    def draft_tokens(self) -> int:
        """k, the drafts of a verify step; 0 without a drafter."""
        given = dict(zip(self.flags, self.flags[1:], strict=False))
        if "--speculative-config" in given:
            return int(json.loads(given["--speculative-config"])["num_speculative_tokens"])
        return int(given.get("--speculative-num-steps", 0))

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer together that it takes."""
        given = dict(zip(self.flags, self.flags[1:], strict=False))
        return int(given.get("--max-model-len") or given["--context-length"])

    def port_of(self, slot: Slot) -> int:
        """Where the slot's engine listens, on the loopback."""
        return self.port + SLOTS.index(slot)

    def to_dict(self) -> dict[str, Any]:
        """As the slot's file has it."""
        return {"schema": SCHEMA, **asdict(self)}


def parse(document: Mapping[str, Any]) -> Service:
    """The service in a slot's document. Raises AerieError for one of another version."""
    fields = dict(document)
    if fields.pop("schema", None) != SCHEMA:
        raise AerieError(
            "service document", seen=document.get("schema"), expected=SCHEMA, remedy="Run ./invoke serve for it again."
        )
    weights = tuple(Weights(**one) for one in fields.pop("weights"))
    return Service(**{**fields, "program": tuple(fields["program"]), "weights": weights})


def file_of(model: str, slot: Slot) -> Path:
    """Where the slot's document lies."""
    return CONFIGURATION / model / f"{slot}.json"


def load(model: str, slot: Slot) -> Service | None:
    """What the slot runs, None while it is empty."""
    try:
        return parse(json.loads(file_of(model, slot).read_bytes()))
    except FileNotFoundError:
        return None


def other(slot: Slot) -> Slot:
    """The slot that a change goes to."""
    return SLOTS[1 - SLOTS.index(slot)]


def unit_of(model: str, slot: Slot) -> str:
    """The slot's unit."""
    return f"aerie-engine-{model}-{slot}.service"
