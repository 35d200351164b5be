"""The plan of hosts: findings in order, the layers to apply, and whether and why a reboot is needed. Pure values."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .findings import Finding, Fix, Severity, diff, rows
from .findings.case import Case, known
from .findings.diff import in_order, judged_layers
from .layers import LAYERS
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .inventory import Host
    from .lock import Lock

__all__ = ["SCHEMA", "HostPlan", "HostState", "Plan", "Reboot", "Waived", "host_plan", "unjudged"]

SCHEMA = "aerie.plan/1"
# Units of the host's own layers, which serve nobody.
OF_LAYERS = ("aerie-acs.service", "aerie-governor.service")
STOPPING = ("kernel", "driver", "interconnect")  # layers whose change takes the GPUs from what uses them


class HostState(StrEnum):
    """What is known of a host."""

    MATCHES = "matches"  # nothing fatal
    DIFFERS = "differs"
    UNREACHABLE = "unreachable"  # no connection: error says why
    UNPROBED = "unprobed"  # reached, but the probe gave no snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboot:
    """At most one reboot follows from a plan. reasons: one sentence each, beginning with a finding's id.

    refused: why aerie will not do it although there are reasons; "" where it will, or where there are none.
    """

    needed: bool
    reasons: tuple[str, ...] = ()
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As `plan --json` has it."""
        return {"needed": self.needed, "reasons": list(self.reasons), "refused": self.refused}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waived:
    """A finding that the inventory waives. expires: ISO date, the last day on which the waiver holds."""

    finding: Finding
    reason: str
    expires: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """One host. apply: layers in order. stops: services and processes that applying interrupts, in words.

    blocked: ids of the findings that only a person can mend and before which nothing may be changed.
    judged: layers that were looked at; those of GPUs only where the inventory gives the host some.
    """

    host: str
    lock: str
    state: HostState
    findings: tuple[Finding, ...] = ()
    waived: tuple[Waived, ...] = ()
    apply: tuple[str, ...] = ()
    reboot: Reboot = field(default_factory=lambda: Reboot(needed=False))
    stops: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
    error: str = ""  # of a host without a snapshot
    lock_sha256: str = ""  # of every value of the lock, those of the host's inventory in it

    def to_dict(self) -> dict[str, Any]:
        """As `plan --json` has it."""
        return {
            "host": self.host,
            "lock": self.lock,
            "lock_sha256": self.lock_sha256,
            "state": str(self.state),
            "findings": [finding.to_dict() for finding in self.findings],
            "waived": [{**one.finding.to_dict(), "reason": one.reason, "expires": one.expires} for one in self.waived],
            "apply": list(self.apply),
            "reboot": self.reboot.to_dict(),
            "stops": list(self.stops),
            "blocked": list(self.blocked),
            "judged": list(self.judged),
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


def host_plan(host: "Host", lock: "Lock", snapshot: Snapshot, today: date) -> HostPlan:
    """What is to be done about the host's findings. Waivers hold up to and on the day they expire."""
    found = diff(lock, snapshot, host)
    valid = {waiver.finding: waiver for waiver in host.waivers if waiver.holds_on(today)}
    expired = {waiver.finding: waiver for waiver in host.waivers if not waiver.holds_on(today)}
    waived = tuple(
        Waived(finding=one, reason=valid[one.id].reason, expires=valid[one.id].expires.isoformat())
        for one in found
        if one.id in valid
    )
    counted = [one for one in found if one.id not in valid]
    if late := [one.id for one in counted if one.id in expired]:
        case = Case(host=host.name, lock=lock, snapshot=snapshot, gpus=host.gpus)
        seen = ", ".join(f"{finding} until {expired[finding].expires.isoformat()}" for finding in late)
        counted.append(case.finding("base.waiver-expired", seen=seen, expected=f"a day not before {today.isoformat()}"))
    findings = in_order(counted)
    blocked = tuple(one.id for one in findings if rows()[one.id].refuses and one.fix is Fix.PERSON)
    apply = () if blocked else _apply(findings)
    reboot = Reboot(needed=False) if blocked else _reboot(findings, waived, apply, is_local=host.is_local)
    return HostPlan(
        host=host.name,
        lock=lock.name,
        lock_sha256=hashlib.sha256(lock.model_dump_json(by_alias=True).encode()).hexdigest(),
        state=HostState.DIFFERS if any(one.severity is Severity.FATAL for one in findings) else HostState.MATCHES,
        findings=findings,
        waived=waived,
        apply=apply,
        reboot=reboot,
        stops=_stops(snapshot) if reboot.needed or any(layer in STOPPING for layer in apply) else (),
        blocked=blocked,
        judged=judged_layers(host.gpus.count),
    )


def unjudged(host: str, lock: str, state: HostState, error: str) -> HostPlan:
    """The plan of a host without a snapshot: only why there is none."""
    return HostPlan(host=host, lock=lock, state=state, error=error)


def _counts(finding: Finding) -> bool:
    return finding.severity is not Severity.INFO


def _apply(findings: Sequence[Finding]) -> tuple[str, ...]:
    layers = {rows()[one.id].role for one in findings if _counts(one) and one.fix is Fix.PROVISION}
    return tuple(layer for layer in LAYERS if layer in layers)


def _reboot(findings: Sequence[Finding], waived: Sequence[Waived], apply: Sequence[str], *, is_local: bool) -> Reboot:
    reasons = tuple(
        f"{one.id}: {one.seen}, expected {one.expected}"
        for one in findings
        if _counts(one) and (one.fix is Fix.REBOOT or (one.needs_reboot and rows()[one.id].role in apply))
    )
    if not reasons:
        return Reboot(needed=False)
    missing = "driver.module-missing"
    if any(one.id == missing for one in (*findings, *(one.finding for one in waived))) and "driver" not in apply:
        return Reboot(needed=False, reasons=reasons, refused=f"{missing}: the next boot would be without a driver")
    refused = "its connection is local; reboot it yourself, then run again after you rebooted" if is_local else ""
    return Reboot(needed=True, reasons=reasons, refused=refused)


def _stops(snapshot: Snapshot) -> tuple[str, ...]:
    """Engines that are up, and what else uses a GPU: each once."""
    units = known(snapshot.engine.units) or ()
    engines = {unit.name: unit for unit in units if unit.active == "active" and unit.name not in OF_LAYERS}
    services = {unit.name: unit for unit in (known(snapshot.services) or {}).values()} | engines
    gpus_by_user: dict[str, list[int]] = {}
    for gpu in known(snapshot.gpus) or ():
        for process in known(gpu.processes) or ():
            user = process.unit or f"{process.name} (pid {process.pid})"
            gpus_by_user.setdefault(user, []).append(gpu.index)
    lines = []
    for name in dict.fromkeys((*engines, *gpus_by_user)):
        since = services[name].since if name in services else None
        words = [f"since {since}, {_age(snapshot.taken_at, since)}"] if since else []
        indexes = sorted(set(gpus_by_user.get(name, ())))
        words += [f"on GPU {', '.join(map(str, indexes))}"] if indexes else []
        lines.append(f"{name}: {'; '.join(words)}" if words else name)
    return tuple(lines)


def _age(now: str, since: str) -> str:
    minutes = (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds() / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} d"
