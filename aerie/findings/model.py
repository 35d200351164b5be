"""A finding: one difference between a lock and a host, or one broken state."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from aerie.severity import Severity

__all__ = ["Finding", "Fix", "Severity"]


class Fix(StrEnum):
    """What makes it go away."""

    PROVISION = "provision"  # the layer's role
    STAGE = "stage"  # ./invoke stage, which fetches and verifies weights
    BUILD = "build"  # ./invoke build, which brings CUDA extensions
    REBOOT = "reboot"  # what is on disk is right already
    PERSON = "person"  # nothing that aerie may do: the remedy says what


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """id: "<layer>.<state>", never renamed; remedy: what to do, a command where there is one.

    needs_reboot: the fix takes effect at the next boot only.
    """

    id: str
    layer: str
    severity: Severity
    seen: str
    expected: str
    remedy: str
    fix: Fix
    needs_reboot: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As `plan --json` has it."""
        return asdict(self)
