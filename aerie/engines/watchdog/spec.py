"""What the watchdog watches and within which limits, as the JSON document that its unit is given."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from aerie.errors import UsageError

__all__ = ["Limits", "Spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds, but for what is named otherwise.

    load_stall_s: without any sign of progress before the first answer. Compiling kernels took over 80 s (SGLang
    0.5.16, H200), in which a log may be silent. decode_stall_s: requests at work and no token,
    while no GPU computes; while one does, load_stall_s holds, for a long prompt is silent too. probe_every_s: how
    often an idle server is asked to generate. settle_s: after a step, until it is judged; a start counts as progress.
    actions: at most so many steps that change something in window_s; then it says so and does nothing more.
    busy: utilisation from which a GPU is busy. low_power: share of its power limit up to which a busy GPU only waits.
    held_bytes: memory in use from which an idle GPU is not free.
    """

    poll_s: float = 5.0
    load_stall_s: float = 300.0
    decode_stall_s: float = 120.0
    probe_every_s: float = 60.0
    probe_timeout_s: float = 30.0
    settle_s: float = 30.0
    window_s: float = 3600.0
    actions: int = 3
    busy: float = 0.9
    low_power: float = 0.35  # 120 to 140 W of 600 W where a collective is stuck (rtx6kpro#15)
    held_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """unit: the service. url: of its server, without /v1. model: name to ask for. gpus: indexes that it uses.

    log: a file, or empty for the unit's journal. key_file: with the API key, or empty. folder: for evidence and state.
    """

    unit: str
    url: str
    model: str
    folder: Path
    gpus: tuple[int, ...] = ()
    log: str = ""
    key_file: str = ""
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Of a JSON file. Raises UsageError for what is missing or unknown."""
        try:
            told = json.loads(path.read_text())
            limits = Limits(**told.pop("limits", {}))
            told |= {"folder": Path(told["folder"]), "gpus": tuple(told.get("gpus", ())), "limits": limits}
            return cls(**told)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                str(path),
                seen=f"{error!r}",
                expected=f"JSON with {', '.join(one.name for one in fields(cls))}",
                remedy="The role engine writes it: ./invoke serve.",
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        limits = {one.name: getattr(self.limits, one.name) for one in fields(Limits)}
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return told | {"folder": str(self.folder), "gpus": list(self.gpus), "limits": limits}
