"""From one lock to another, and back: what a receipt on the host makes possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import apply as plays
from . import inventory, provision, remote
from . import lock as locks
from .errors import AerieError
from .inventory import Host
from .lock import Lock
from .provision import Outcome, Prepared, State
from .runbook.step import write_atomic
from .snapshot import Receipt, Snapshot, Unknown

if TYPE_CHECKING:
    from .engines.service.serving import Judged

__all__ = ["Upgraded", "prepare_rollback", "rollback", "upgrade"]

KEPT_LOCKS = "/var/lib/aerie/locks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """What an upgrade or a rollback came to. back: the rollback that followed; recorded: files that name the new lock.

    failed: hosts that are not what the lock says, or serve a model whose acceptance fell. Without `back` they can be
    taken back by `rollback`. judged: every model that was served on a host that verified.
    """

    outcome: Outcome
    failed: tuple[str, ...]
    back: Outcome | None
    recorded: tuple[Path, ...]
    judged: "tuple[Judged, ...]" = ()

    @property
    def exit_code(self) -> int:
        """That of the upgrade; 1 when it failed, also where the way back went well, and when an acceptance fell."""
        fell = any(one.fell for one in self.judged)
        return 1 if self.back is not None or fell else self.outcome.exit_code

    def to_dict(self) -> dict[str, Any]:
        """The document of `upgrade --json` and `rollback --json`."""
        return {
            **self.outcome.to_dict(),
            "schema": "aerie.upgrade/1",
            "rollback": None if self.back is None else self.back.to_dict(),
            "recorded": [str(path) for path in self.recorded],
            "services": [one.to_dict() for one in self.judged],
        }


def upgrade(
    prepared: Prepared, *, auto_rollback: bool = False, listener: plays.Listener = lambda grid: None, **options: Any
) -> Upgraded:
    """Apply a plan made against a new lock; when the hosts verify, the inventory names that lock.

    What they serve must then accept no less of its drafts than in its last good run.
    auto_rollback: hosts that do not verify afterwards, or accept less, go back to the lock of their receipt, from files
    that they kept. options: those of provision.apply.
    """
    outcome = provision.apply(prepared, listener=listener, **options)
    judged = _judge(prepared, outcome)
    fallen = {one.host for one in judged if one.fell}
    failed = tuple(one.host for one in outcome.hosts if one.host in {*outcome.failed_hosts, *fallen})
    back = None
    if failed and auto_rollback:
        returning = prepare_rollback(",".join(failed), inventory_file=prepared.inventory, before=prepared)
        back = provision.apply(returning, listener=listener, variables=_offline(), **options)
        inventory.record_failed(failed)  # however well the way back went
    recorded = _record(prepared, outcome, failed)
    return Upgraded(outcome=outcome, failed=failed, back=back, recorded=recorded, judged=judged)


def _judge(prepared: Prepared, outcome: Outcome) -> "tuple[Judged, ...]":
    """What was served before, on the hosts that were changed and are what their lock says."""
    from .engines.service import serving

    judged = []
    for one in outcome.hosts:
        if one.state is not State.DONE or one.host in outcome.failed_hosts:
            continue
        services = prepared.snapshots[one.host].engine.services
        for service in () if isinstance(services, Unknown) else services:
            try:
                judged.append(serving.judge(one.host, service.model, prepared.inventory))
            except AerieError as error:  # of its connection: no proof of a fall
                judged.append(serving.Judged(host=one.host, model=service.model, acceptance=None, why=str(error)))
    return tuple(judged)


def prepare_rollback(
    pattern: str, *, inventory_file: Path | None = None, before: Prepared | None = None, forks: int = 16
) -> Prepared:
    """The plan of going back to the lock before, which each host's receipt names.

    before: the plan of an upgrade that just failed; hosts whose receipt it never reached go back to what they were.
    A host without a lock to go back to is in the plan as one that cannot be judged.
    """

    def lock_of(host: Host, snapshot: Snapshot) -> tuple[Lock, Path]:
        receipt = snapshot.receipt
        failed = before.locks[host.name].name if before else None
        if isinstance(receipt, Receipt):
            name = receipt.lock if failed not in (None, receipt.lock) else receipt.previous_lock
            if name:
                return _kept(host, name, inventory.folder(inventory_file))
        raise AerieError(
            f"host {host.name}",
            seen="no receipt of a lock before this one",
            expected="one in /var/lib/aerie/receipt.json",
            remedy=f"Name the lock: ./invoke provision --host {host.name} --lock NAME.",
        )

    return provision.prepare(pattern, inventory_file=inventory_file, lock_of=lock_of, forks=forks)


def rollback(prepared: Prepared, *, listener: plays.Listener = lambda grid: None, **options: Any) -> Upgraded:
    """Apply a plan of prepare_rollback, from packages that the hosts kept; the inventory then names the old lock."""
    outcome = provision.apply(prepared, listener=listener, variables=_offline(), **options)
    failed = outcome.failed_hosts
    return Upgraded(outcome=outcome, failed=failed, back=None, recorded=_record(prepared, outcome, failed))


def _offline() -> Mapping[str, Any]:
    return {"driver_prefer_kept_archives": True}


def _record(prepared: Prepared, outcome: Outcome, failed: Sequence[str]) -> tuple[Path, ...]:
    """Let the inventory name the lock of every host that is what it says; the files that do."""
    return tuple(
        inventory.record_lock(host.host, prepared.locks[host.host].name, prepared.inventory)
        for host in outcome.hosts
        if host.host not in failed
    )


def _kept(host: Host, name: str, folder: Path) -> tuple[Lock, Path]:
    """The lock of that name here; where it is gone or renamed, the copy that the host kept."""
    try:
        file = locks.path(name, folder)
    except AerieError:
        result = remote.run(host, ["cat", f"{KEPT_LOCKS}/{name}.lock.toml"], sudo=True)
        if result.exit_code != 0:
            raise
        file = folder / "locks" / f"{name}.lock.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, result.stdout.encode())
    return locks.with_variables(locks.load(name, folder), host.variables), file
