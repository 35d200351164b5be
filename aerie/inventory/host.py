"""What the inventory says about one host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from aerie.errors import UsageError

__all__ = ["Gpus", "Host", "Waiver", "require_local"]


class _Variable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _bus_id(text: str) -> str:
    # NVML writes the domain with eight digits, the kernel with four; capitals occur in both.
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


BusId = Annotated[
    str, Field(pattern=r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$"), AfterValidator(_bus_id)
]


class Gpus(_Variable):
    """The GPUs that a host ought to have."""

    count: int = Field(default=0, ge=0, le=64)
    """How many; a host without GPUs has no findings of driver, interconnect and cuda."""
    model: str = ""
    """A part of the name that NVML gives; "" for any."""
    bus_ids: tuple[BusId, ...] = ()
    """As `lspci -D` writes them, "0000:05:00.0": lets `plan` name a GPU that is gone."""
    serials: tuple[str, ...] = ()
    """Serial numbers, for the same."""
    power_limit_w: int | None = Field(default=None, ge=1)
    """Watts per GPU; without it the limit that the card came with stays."""

    @model_validator(mode="after")
    def _counts_agree(self) -> "Gpus":
        for name, listed in (("bus_ids", self.bus_ids), ("serials", self.serials)):
            if listed and len(set(listed)) != self.count:
                raise ValueError(
                    f"{len(set(listed))} different {name}, expected none or as many as count, {self.count}"
                )
        return self


class Waiver(_Variable):
    """A finding that does not count on a host."""

    finding: str = Field(pattern=r"^[a-z]+\.[a-z0-9-]+$")
    """Its id."""
    reason: str
    """Why it may stay; `plan` shows it."""
    expires: date
    """The last day on which the waiver holds, "2027-03-31"."""

    @model_validator(mode="after")
    def _has_reason(self) -> "Waiver":
        if not self.reason.strip():
            raise ValueError("an empty reason, expected why the finding may stay")
        return self

    def holds_on(self, day: date) -> bool:
        """Does it still hold on that day?"""
        return day <= self.expires


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host.

    user and port are None where ssh's own configuration decides. connection: Ansible's word ("local", "ssh").
    groups: all it is in, without "all". variables: every one of the inventory for it, templates resolved in those of
    aerie and in those that a connection needs; vaulted ones are left out.
    """

    name: str
    address: str
    user: str | None
    connection: str
    port: int | None = None
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    lock: str | None = None
    gpus: Gpus = field(default_factory=Gpus)
    waivers: tuple[Waiver, ...] = ()

    @property
    def is_local(self) -> bool:
        """Is it the machine that aerie runs on?"""
        return self.connection == "local"


def require_local(host: Host) -> None:
    """Raises UsageError unless `host` is the machine that aerie runs on."""
    if not host.is_local:
        raise UsageError(
            f"host {host.name}",
            seen=f"connection {host.connection} to {host.address}",
            expected="a host with ansible_connection: local; runbooks do not run over ssh yet",
            remedy=f"Log in to {host.name}, clone aerie there and run it with --host localhost.",
        )
