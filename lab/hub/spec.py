"""What the hub's process is told, and the names that its clients need."""

from dataclasses import dataclass, field

__all__ = ["BUCKET", "MEMBER", "STRANGER", "Spec"]

BUCKET = "lab-bucket"
MEMBER = "hf_lab_member"  # the token that may see everything
STRANGER = "hf_lab_stranger"  # a right token of somebody who was let into no gate


@dataclass(kw_only=True)
class Spec:
    """folder: of the content; hub and store: address and port, 0 for any; page: entries in one answer of a listing.

    expires_s: how long signed addresses live. cgroups: folders to join. detach: leave the caller once it listens.
    """

    folder: str
    hub: tuple[str, int]
    store: tuple[str, int]
    page: int = 1000
    expires_s: float = 3600
    cgroups: list[str] = field(default_factory=list)
    detach: bool = False
