"""Which slot of a model is live, and how its last change ended: one JSON file per model."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from aerie.runbook.step import write_atomic

from .definition import STATE, Slot

__all__ = ["Change", "State", "now", "read", "write"]

SCHEMA: Final = "aerie.service-state/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The receipt of a change. outcome: "switched"; "kept", what was there before serves on; "failed", nothing does.

    to, before: the slots and what they run in words; why: what went wrong, "" where nothing did. acceptance: as
    regression.Verdict tells it, None without a drafter and where the change did not come that far.
    """

    at: str  # UTC, ISO 8601
    outcome: Literal["switched", "kept", "failed", "stopped"]
    to: str
    before: str
    why: str
    seconds: float
    acceptance: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """live: None where nothing serves the model; previous: the slot for the way back."""

    model: str
    live: Slot | None
    previous: Slot | None
    last: Change | None

    def after(self, change: Change, **fields: Any) -> "State":
        """With this change as the last one."""
        return replace(self, last=change, **fields)

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        return {"schema": SCHEMA, **asdict(self)}


def read(model: str) -> State:
    """The model's state; of one that was never served, an empty one."""
    try:
        found = json.loads((STATE / f"{model}.json").read_bytes())
    except FileNotFoundError:
        return State(model=model, live=None, previous=None, last=None)
    last = found["last"]
    return State(
        model=model, live=found["live"], previous=found["previous"], last=Change(**last) if last is not None else None
    )


def write(state: State) -> None:
    """Keep it, durably."""
    STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomic(STATE / f"{state.model}.json", json.dumps(state.to_dict(), indent=1).encode() + b"\n")


def now() -> str:
    """UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
