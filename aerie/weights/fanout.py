"""Staging a model on hosts: one fetches from the source, and all give each other what they have verified."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from aerie import apply as plays
from aerie import inventory
from aerie.errors import AerieError
from aerie.paths import state_dir
from aerie.runbook import hostlock
from aerie.runbook.interrupts import catch

from .following import Follower, HostResult, Progress, State
from .staging import HostPlan, HostState, Prepared

__all__ = ["SCHEMA", "Listener", "Outcome", "stage"]

SCHEMA = "aerie.stage/1"
TICK_S = 0.5
STOP_S = 60.0
PROMOTIONS = 2  # where the source itself is what fails, another host fails like the first

Listener = Callable[[Sequence[Progress]], None]
"""Called about twice a second with every host that is at work, in the inventory's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What staging came to. interrupted: by Ctrl-C or SIGTERM, its exit code, else 0."""

    model: str
    target: str
    manifest_sha256: str
    size_bytes: int
    hosts: tuple[HostResult, ...]
    seeder: str
    wall_s: float
    interrupted: int = 0

    @property
    def exit_code(self) -> int:
        """0 every host holds the model, verified; 1 one does not."""
        good = (State.DONE, State.UNCHANGED)
        return self.interrupted or (0 if all(host.state in good for host in self.hosts) else 1)

    @property
    def failed(self) -> tuple[str, ...]:
        """The hosts that do not hold it."""
        return tuple(host.host for host in self.hosts if host.state not in (State.DONE, State.UNCHANGED))

    def to_dict(self) -> dict[str, Any]:
        """The document of `stage --json`."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "target": self.target,
            "manifest_sha256": self.manifest_sha256,
            "size_bytes": self.size_bytes,
            "seeder": self.seeder,
            "wall_s": round(self.wall_s, 3),
            "hosts": [host.to_dict() for host in self.hosts],
        }


def stage(prepared: Prepared, *, forks: int = 16, listener: Listener = lambda hosts: None) -> Outcome:
    """Stage the model on the hosts of the plan, and wait until each has it verified or says why not.

    Jobs at work are attached to. Seeders are started where hosts share, and stopped however it ends. Ctrl-C stops the
    jobs too; what has arrived is kept, as it is when this machine dies, where the jobs go on.
    """
    began = time.monotonic()
    plan = prepared.plan
    results = {host.host: _without_work(host) for host in plan.hosts}
    interrupted = 0
    if plan.at_work:
        with catch() as interrupts, ExitStack() as held:
            for host in plan.hosts:
                if host.is_usable:
                    claim = held.enter_context(hostlock.hold(state_dir() / "hosts" / "locks", host.host))
                    claim(f"stage of {plan.model}")
            serving, seeder = held.enter_context(_seeding(prepared, forks))
            followers = _followers(prepared, serving, seeder)
            _watch(prepared, followers, serving, listener, lambda: interrupts.count > 0)
            interrupted = interrupts.exit_code if interrupts.count else 0
        results |= {name: follower.result for name, follower in followers.items()}
    done = tuple(result for result in results.values() if result is not None)
    inventory.record_failed([one.host for one in done if one.state not in (State.DONE, State.UNCHANGED)])
    return Outcome(
        model=plan.model,
        target=prepared.target,
        manifest_sha256=plan.manifest_sha256,
        size_bytes=plan.size_bytes,
        hosts=done,
        seeder=plan.seeder,
        wall_s=time.monotonic() - began,
        interrupted=interrupted,
    )


def _without_work(host: HostPlan) -> HostResult | None:
    """The result of a host on which nothing is done."""
    states = {
        HostState.STAGED: State.UNCHANGED,
        HostState.BLOCKED: State.FAILED,
        HostState.UNREACHABLE: State.UNREACHABLE,
    }
    return HostResult(host=host.host, state=states[host.state], error=host.error) if host.state in states else None


@contextmanager
def _seeding(prepared: Prepared, forks: int) -> Iterator[tuple[list[str], str]]:
    """The hosts that serve what they have, the one that uses the source first; they stop at the end, however it comes.

    Raises AerieError where none of several can serve.
    """
    plan = prepared.plan
    usable = [host.host for host in plan.hosts if host.is_usable]
    if not plan.is_shared:
        yield [], plan.seeder or usable[0]
        return
    able = [host.host for host in plan.hosts if host.is_usable and host.look and host.look.can_seed]
    able = [name for name in able if name in prepared.addresses]
    try:
        serving, errors = _play(prepared, able, forks, "started")
        if not serving:
            raise AerieError(
                "seeder",
                seen="; ".join(errors) or f"nginx and its unit on none of {', '.join(usable)}",
                expected="a host that can serve the others",
                remedy=f"./invoke provision --host {','.join(usable)} --layer weights, or stage one host at a time.",
            )
        yield serving, plan.seeder if plan.seeder in serving else serving[0]
    finally:
        _play(prepared, able, forks, "stopped")


def _play(prepared: Prepared, names: Sequence[str], forks: int, state: str) -> tuple[list[str], list[str]]:
    """The hosts where it went well, and what the others said."""
    if not names:
        return [], []
    addresses = prepared.addresses
    played = plays.play(
        "stage",
        [
            plays.HostInput(
                host=name,
                layers=("weights",),
                group="aerie_staging",
                group_variables={"weights_path": prepared.weights.path, "weights_port": prepared.weights.port},
                variables={"weights_address": addresses[name]},
            )
            for name in names
        ],
        inventory=prepared.inventory,
        variables={"aerie_seeding": state, "weights_peers": sorted(set(addresses.values()))},
        forks=forks,
    )
    good = [host.host for host in played.hosts if host.state == "ok"]
    return good, [f"{host.host}: {host.error}" for host in played.hosts if host.state != "ok"]


def _followers(prepared: Prepared, serving: Sequence[str], seeder: str) -> dict[str, Follower]:
    found = {}
    for plan in prepared.plan.at_work:
        may_use_origin = plan.host == seeder or not serving
        spec = prepared.spec(plan.host, serving, may_use_origin=may_use_origin)
        progress = Progress(host=plan.host, state=State.WAITING, bytes_total=prepared.plan.size_bytes)
        follower = Follower(prepared.hosts[plan.host], prepared.job_folder, spec, progress)
        follower.may_use_origin = may_use_origin
        found[plan.host] = follower
    return found


def _watch(
    prepared: Prepared,
    followers: Mapping[str, Follower],
    serving: Sequence[str],
    listener: Listener,
    wants_stop: Callable[[], bool],
) -> None:
    """Start all, and wait for their ends; where the one that may use the source is gone, another may."""
    promotions = 0
    for follower in followers.values():
        follower.start()
    while not _have_ended(followers.values()):
        listener([follower.progress for follower in followers.values()])
        if wants_stop():
            for follower in followers.values():
                follower.stop()
            for follower in followers.values():
                follower.join(STOP_S)
            break
        waiting = [one for one in followers.values() if one.result is None]
        if waiting and promotions < PROMOTIONS and _lacks_origin(prepared, followers, waiting):
            promotions += 1
            heir = waiting[0]
            heir.promote(prepared.spec(heir.host.name, serving, may_use_origin=True))
    listener([follower.progress for follower in followers.values()])


def _have_ended(followers: Collection[Follower]) -> bool:
    """Have all of them? Waits a moment for each that has not."""
    return [follower.join(TICK_S / len(followers)) for follower in followers].count(False) == 0


def _lacks_origin(prepared: Prepared, followers: Mapping[str, Follower], waiting: Sequence[Follower]) -> bool:
    """Has nobody who is still at work the source, and no host everything?"""
    is_whole = any(host.state is HostState.STAGED for host in prepared.plan.hosts)
    is_whole |= any(one.result and one.result.state is State.DONE for one in followers.values())
    return not is_whole and not any(one.may_use_origin for one in waiting)
