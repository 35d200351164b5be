"""The plan of hosts: findings in order, the layers to apply, and whether and why a reboot is needed. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .findings import Finding, Severity

__all__ = ["SCHEMA", "HostPlan", "HostState", "Plan", "Reboot", "Waived"]

SCHEMA = "aerie.plan/1"


class HostState(StrEnum):
    """What is known of a host."""

    MATCHES = "matches"  # nothing fatal
    DIFFERS = "differs"
    UNREACHABLE = "unreachable"  # no connection: error says why
    UNPROBED = "unprobed"  # reached, but the probe gave no snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboot:
    """reasons: one sentence each, beginning with a finding's id. At most one reboot follows from a plan."""

    needed: bool
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As `plan --json` has it."""
        return {"needed": self.needed, "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waived:
    """A finding that the inventory waives. expires: ISO date, the last day on which the waiver holds."""

    finding: Finding
    reason: str
    expires: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """One host. apply: layers in order. stops: services and processes that applying interrupts, in words."""

    host: str
    lock: str
    state: HostState
    findings: tuple[Finding, ...] = ()
    waived: tuple[Waived, ...] = ()
    apply: tuple[str, ...] = ()
    reboot: Reboot = field(default_factory=lambda: Reboot(needed=False))
    stops: tuple[str, ...] = ()
    error: str = ""  # of a host without a snapshot

    def to_dict(self) -> dict[str, Any]:
        """As `plan --json` has it."""
        return {
            "host": self.host,
            "lock": self.lock,
            "state": str(self.state),
            "findings": [finding.to_dict() for finding in self.findings],
            "waived": [{**one.finding.to_dict(), "reason": one.reason, "expires": one.expires} for one in self.waived],
            "apply": list(self.apply),
            "reboot": self.reboot.to_dict(),
            "stops": list(self.stops),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of every host asked for, in the inventory's order."""

    hosts: tuple[HostPlan, ...]

    def exit_code(self, fail_on: Severity = Severity.FATAL) -> int:
        """1 when a host could not be judged, 3 when one has findings of this severity or worse, else 0."""
        worse = (Severity.FATAL,) if fail_on is Severity.FATAL else (Severity.FATAL, Severity.WARN)
        if any(host.state in (HostState.UNREACHABLE, HostState.UNPROBED) for host in self.hosts):
            return 1
        return 3 if any(finding.severity in worse for host in self.hosts for finding in host.findings) else 0

    def changing(self) -> "Sequence[HostPlan]":
        """The hosts on which something is to be done."""
        return [host for host in self.hosts if host.apply or host.reboot.needed]

    def to_dict(self) -> dict[str, Any]:
        """The document of `plan --json`."""
        return {"schema": SCHEMA, "hosts": [host.to_dict() for host in self.hosts]}
