"""Plan hosts, and bring them to their locks: probe, judge, apply what differs, reboot at most once, verify."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import apply as plays
from . import inventory, remote, verify
from . import lock as locks
from .choice import unknown_name
from .errors import AerieError
from .findings import Fix
from .inventory import Host
from .layers import LAYERS
from .lock import Lock
from .paths import repository, state_dir
from .plan import HostPlan, HostState, Plan, host_plan, unjudged
from .runbook import hostlock
from .snapshot import Snapshot, Unknown

if TYPE_CHECKING:
    from .verification import Verification

__all__ = ["Outcome", "Prepared", "State", "apply", "host_input", "prepare"]

SCHEMA = "aerie.provision/1"
DISRUPTIVE = ("kernel", "driver", "interconnect")  # layers that what uses a GPU does not survive


class State(StrEnum):
    """How it ended on one host."""

    UNCHANGED = "unchanged"  # matched its lock: nothing was run
    DONE = "done"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"  # nothing was run: a person must act first
    REBOOT_PENDING = "reboot-pending"  # everything is applied but takes effect at a reboot that aerie may not do


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan and what it was made from, per host name. lock_files: where each host's lock was read."""

    plan: Plan
    inventory: Path
    hosts: Mapping[str, Host]
    locks: Mapping[str, Lock]
    lock_files: Mapping[str, Path]
    snapshots: Mapping[str, Snapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    """One host. error: why it is not done; rebooted: whether it was rebooted, once."""

    host: str
    state: State
    layers: Mapping[str, str]
    changed: int
    rebooted: bool
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON documents have it."""
        fields = {"host": self.host, "state": str(self.state), "layers": dict(self.layers), "changed": self.changed}
        return {**fields, "rebooted": self.rebooted, "error": self.error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What applying a plan came to. folder: Ansible's logs, None where no play was needed; verification: afterwards."""

    hosts: tuple[HostOutcome, ...]
    wall_s: float
    folder: Path | None
    verification: "Verification | None"

    @property
    def exit_code(self) -> int:
        """1 a host failed, 5 a person must reboot, 3 the verification found something fatal, 0 all is well."""
        states = {host.state for host in self.hosts}
        if states & {State.FAILED, State.UNREACHABLE, State.REFUSED}:
            return 1
        code = self.verification.exit_code() if self.verification else 0
        return 1 if code == 1 else 5 if State.REBOOT_PENDING in states else code

    @property
    def failed_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that are not what their locks say, for whatever reason: `--host @failed` afterwards."""
        bad = {host.host for host in self.hosts if host.state not in (State.DONE, State.UNCHANGED)}
        bad |= set(self.verification.failed_hosts if self.verification else ())
        return tuple(host.host for host in self.hosts if host.host in bad)

    def to_dict(self) -> dict[str, Any]:
        """The document of `provision --json`."""
        return {
            "schema": SCHEMA,
            "hosts": [host.to_dict() for host in self.hosts],
            "wall_s": self.wall_s,
            "folder": None if self.folder is None else str(self.folder),
            "verification": None if self.verification is None else self.verification.to_dict(),
        }


LockOf = Callable[[Host, Snapshot], tuple[Lock, Path]]


def prepare(
    pattern: str,
    *,
    inventory_file: Path | None = None,
    lock: str | None = None,
    lock_of: LockOf | None = None,
    layers: Sequence[str] = (),
    forks: int = 16,
) -> Prepared:
    """The plan of these hosts, with what it takes to apply it. Nothing is changed.

    lock: instead of the inventory's; lock_of: chosen by host and snapshot; layers: only these.
    Raises UsageError for an unknown pattern, lock or layer, before any host is reached.
    """
    for layer in layers:
        if layer not in LAYERS:
            raise unknown_name("layer", layer, LAYERS)
    path = inventory_file or repository() / "inventory" / "hosts.yml"
    hosts = {host.name: host for host in inventory.select(pattern, path)}
    fixed = {} if lock_of else {name: _lock(host, lock, path) for name, host in hosts.items()}
    probed = remote.probe_all(tuple(hosts.values()), forks=forks)
    chosen: dict[str, tuple[Lock, Path]] = {}
    plans = []
    for name, host in hosts.items():
        seen = probed[name]
        if isinstance(seen, AerieError):
            plans.append(_unknown(host, seen))
            continue
        try:
            chosen[name] = lock_of(host, seen) if lock_of else fixed[name]
        except AerieError as error:
            plans.append(_unknown(host, error))
            continue
        plans.append(_only(host_plan(host, chosen[name][0], seen, date.today()), layers))
    return Prepared(
        plan=Plan(hosts=tuple(plans)),
        inventory=path,
        hosts=hosts,
        locks={name: pair[0] for name, pair in chosen.items()},
        lock_files={name: pair[1] for name, pair in chosen.items()},
        snapshots={name: seen for name, seen in probed.items() if isinstance(seen, Snapshot)},
    )


def apply(
    prepared: Prepared,
    *,
    forks: int = 16,
    serial: int = 1,
    max_fail_percentage: int = 100,
    allow_busy: bool = False,
    may_reboot: bool = True,
    variables: Mapping[str, Any] | None = None,
    listener: plays.Listener = lambda grid: None,
) -> Outcome:
    """Apply the plan: one play over the hosts that differ, at most one reboot each, then verification of all.

    serial: hosts that reboot at the same time. allow_busy: also where processes use the GPUs. variables: for roles.
    """
    began = datetime.now(UTC)
    refused = {host.host: error for host in prepared.plan.hosts if (error := _refusal(prepared, host, allow_busy))}
    wanted = [host for host in prepared.plan.changing() if host.host not in refused]
    result = None
    if wanted:
        with ExitStack() as held:
            for host in wanted:
                claim = held.enter_context(hostlock.hold(state_dir() / "hosts" / "locks", host.host))
                claim("provision")
            result = plays.play(
                "provision",
                [host_input(prepared, host, may_reboot=may_reboot) for host in wanted],
                inventory=prepared.inventory,
                variables={
                    "aerie_serial": serial,
                    "aerie_max_fail_percentage": max_fail_percentage,
                    **({"driver_allow_busy": True} if allow_busy else {}),
                    **(variables or {}),
                },
                forks=forks,
                listener=listener,
            )
    played = {one.host: one for one in result.hosts} if result else {}
    hosts = tuple(_host_outcome(prepared, host, refused, played) for host in prepared.plan.hosts)
    # A host without a lock of its own is one that could not be probed.
    known_states = (State.DONE, State.UNCHANGED, State.FAILED)
    settled = [host.host for host in hosts if host.state in known_states and host.host in prepared.locks]
    verification = None
    if settled:
        # A host on which nothing ran is as its snapshot says; the others are probed again.
        known = {host.host: prepared.snapshots[host.host] for host in hosts if host.state is State.UNCHANGED}
        verification = verify.run(
            [prepared.hosts[name] for name in settled],
            locks={name: prepared.locks[name] for name in settled},
            snapshots=known,
            forks=forks,
        )
    outcome = Outcome(
        hosts=hosts,
        wall_s=(datetime.now(UTC) - began).total_seconds(),
        folder=result.folder if result else None,
        verification=verification,
    )
    inventory.record_failed(outcome.failed_hosts)
    return outcome


def _lock(host: Host, name: str | None, path: Path) -> tuple[Lock, Path]:
    lock = inventory.lock_of(host, name, path)
    return lock, locks.path(lock.name, inventory.folder(path))


def _unknown(host: Host, error: AerieError) -> HostPlan:
    is_unreachable = isinstance(error, remote.Unreachable)
    state = HostState.UNREACHABLE if is_unreachable else HostState.UNPROBED
    return unjudged(host.name, host.lock or "", state, str(error))


def _only(plan: HostPlan, layers: Sequence[str]) -> HostPlan:
    """The plan of these layers alone; all of them when there are none."""
    if not layers:
        return plan
    findings = tuple(finding for finding in plan.findings if finding.layer in layers)
    reasons = tuple(reason for reason in plan.reboot.reasons if any(reason.startswith(f"{layer}.") for layer in layers))
    return replace(
        plan,
        findings=findings,
        apply=tuple(layer for layer in plan.apply if layer in layers),
        reboot=replace(plan.reboot, needed=plan.reboot.needed and bool(reasons), reasons=reasons),
    )


def _refusal(prepared: Prepared, plan: HostPlan, allow_busy: bool) -> str:
    """Why nothing may be done on the host now; "" when it may."""
    if plan.blocked:
        first = next(finding for finding in plan.findings if finding.id in plan.blocked)
        return f"{first.id}: {first.seen}. {first.remedy}"
    snapshot = prepared.snapshots.get(plan.host)
    if snapshot is None or allow_busy:
        return ""
    disrupts = plan.reboot.needed or any(layer in DISRUPTIVE for layer in plan.apply)
    if not disrupts or isinstance(snapshot.gpus, Unknown):
        return ""
    users = sorted(
        {
            f"{process.unit or process.name} (pid {process.pid})"
            for gpu in snapshot.gpus
            if not isinstance(gpu.processes, Unknown)
            for process in gpu.processes
        }
    )
    if not users:
        return ""
    return f"{', '.join(users)} use the GPUs; stop them, or give --allow-busy"


def host_input(prepared: Prepared, plan: HostPlan, *, may_reboot: bool) -> plays.HostInput:
    """What the play is told of this host: the layers of its plan, its lock, why it is to reboot."""
    host, lock = prepared.hosts[plan.host], prepared.locks[plan.host]
    text = prepared.lock_files[plan.host].read_text()
    reboot_fixes = {finding.id for finding in plan.findings if finding.fix is Fix.REBOOT}
    reasons = [reason for reason in plan.reboot.reasons if reason.split(":", 1)[0] in reboot_fixes]
    return plays.HostInput(
        host=plan.host,
        layers=plan.apply,
        # Of this host alone: in its lock are the host's own variables, which are not those of others.
        group="aerie_host_" + re.sub(r"\W", "_", plan.host),
        group_variables=locks.role_variables(lock),
        variables={
            "aerie_reboot_reasons": reasons,
            "aerie_may_reboot": may_reboot and not host.is_local,
            "aerie_receipt": _receipt(lock, text, plan, prepared.snapshots[plan.host]),
            "aerie_lock_text": text,
        },
    )


def _receipt(lock: Lock, text: str, plan: HostPlan, snapshot: Snapshot) -> dict[str, Any]:
    before = None if isinstance(snapshot.receipt, Unknown) else snapshot.receipt
    previous = None
    if before is not None:
        previous = before.previous_lock if before.lock == lock.name else before.lock
    return {
        "lock": lock.name,
        "lock_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "applied_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "previous_lock": previous,
        "layers": list(plan.apply),
    }


def _host_outcome(
    prepared: Prepared,
    plan: HostPlan,
    refused: Mapping[str, str],
    played: Mapping[str, plays.HostResult],
) -> HostOutcome:
    def ended(state: State, error: str = "") -> HostOutcome:
        result = played.get(plan.host)
        return HostOutcome(
            host=plan.host,
            state=state,
            layers={layer: str(cell) for layer, cell in result.cells.items()} if result else {},
            changed=result.changed if result else 0,
            rebooted=result.has_rebooted if result else False,
            error=error,
        )

    if plan.state is HostState.UNREACHABLE:
        return ended(State.UNREACHABLE, plan.error)
    if plan.state is HostState.UNPROBED:
        return ended(State.FAILED, plan.error)
    if plan.host in refused:
        return ended(State.REFUSED, refused[plan.host])
    if plan.host not in played:
        return ended(State.UNCHANGED)
    result = played[plan.host]
    if result.state != "ok":
        return ended(State(result.state), result.error)
    if result.reboot_reasons and not result.has_rebooted:
        why = "; ".join(result.reboot_reasons)
        return ended(State.REBOOT_PENDING, f"reboot {plan.host}, then run the same command again. {why}")
    return ended(State.DONE)
