"""What `serve` would do on a host: one probe and one question, nothing changed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from aerie import inventory, remote
from aerie.choice import unknown_name
from aerie.engines import capability, gpu_arch
from aerie.errors import AerieError, UsageError
from aerie.findings import Finding, Severity, diff
from aerie.inventory import Host
from aerie.lock import MOST_DRAFT_TOKENS, EngineModel, Lock
from aerie.paths import repository
from aerie.snapshot import Snapshot, StagedModel, Unknown
from aerie.weights import models
from aerie.weights.document import target

from . import launching
from .onhost import gates
from .onhost.definition import SLOTS, Service, Slot, Weights, other, unit_of
from .status import Status, look

__all__ = [
    "Action",
    "Ground",
    "Prepared",
    "ServePlan",
    "plan_of",
    "prepare",
    "prepare_rollback",
    "read",
    "refusals",
    "wanted_of",
]

SCHEMA = "aerie.serve-plan/1"
OF_GPUS = ("driver", "interconnect")  # layers whose fatal findings an engine on GPUs would meet


class Action(StrEnum):
    """What is to be done."""

    NOTHING = "nothing"  # the live slot runs just that
    START = "start"  # nothing serves the model yet
    CHANGE = "change"  # the other slot, then the front leads to it
    ATTACH = "attach"  # a change is at work there already
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What would be done. slot: that is to serve; wanted: what it is to run, None where that is not known.

    problems: why not; notes: what to know before.
    """

    host: str
    model: str
    action: Action
    slot: Slot | None
    wanted: Service | None
    now: Status
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_filled(self) -> bool:
        """Does the slot hold just that already?"""
        return self.slot is not None and self.now.services.get(self.slot) == self.wanted

    @property
    def exit_code(self) -> int:
        """2 where it is refused, else 0."""
        return 2 if self.action is Action.REFUSE else 0

    def to_dict(self) -> dict[str, Any]:
        """The document of `serve --plan --json`."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "model": self.model,
            "action": str(self.action),
            "slot": self.slot,
            "wanted": self.wanted.to_dict() if self.wanted else None,
            "now": self.now.to_dict(),
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan and what it was made from. accept_fall: may less be accepted of its drafts than in the last good run?

    is_tried: is it held against that run at all?
    """

    plan: ServePlan
    inventory: Path
    host: Host
    lock: Lock
    accept_fall: bool = False
    is_tried: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What plans for one model of a host are made from. weights: of the model, and of the drafter that was named."""

    inventory: Path
    host: Host
    lock: Lock
    weights: tuple[Weights, ...]
    snapshot: Snapshot
    now: Status


def prepare(
    host: str,
    model: str,
    engine: str,
    *,
    drafter: str = "",
    draft_tokens: int | None = None,
    accept_fall: bool = False,
    inventory_file: Path | None = None,
) -> Prepared:
    """The plan of serving a model of the host's lock with this engine. Nothing is changed.

    draft_tokens: of the drafter, 1 to MOST_DRAFT_TOKENS, instead of the lock's. Raises UsageError for an unknown host,
    model, drafter or engine, and as remote.probe does.
    """
    if engine not in launching.KEYS:
        raise unknown_name("engine", engine, launching.KEYS)
    if draft_tokens is not None and not (drafter and 1 <= draft_tokens <= MOST_DRAFT_TOKENS):
        raise UsageError(
            "--draft-tokens",
            seen=draft_tokens if drafter else f"{draft_tokens} without --drafter",
            expected=f"1 to {MOST_DRAFT_TOKENS}, with a drafter",
            remedy="Without --drafter nothing drafts.",
        )
    ground = read(host, model, drafter, inventory_file)
    wanted, problems = wanted_of(ground, engine, draft_tokens=draft_tokens)
    return Prepared(
        plan=plan_of(ground.now, wanted, problems),
        inventory=ground.inventory,
        host=ground.host,
        lock=ground.lock,
        accept_fall=accept_fall,
    )


def read(host: str, model: str, drafter: str = "", inventory_file: Path | None = None) -> Ground:
    """One probe and one question; nothing is changed. Raises as `prepare` does."""
    path = inventory_file or repository() / "inventory" / "hosts.yml"
    named = inventory.host(host, path)
    lock = inventory.lock_of(named, None, path)
    weights = tuple(_weights(lock, name) for name in ((model, drafter) if drafter else (model,)))
    folder = launching.environment_of(lock.engine.models.get(model, EngineModel()))
    snapshot = remote.probe(named)
    now = look(named, model, folder, [one.folder for one in weights])
    return Ground(inventory=path, host=named, lock=lock, weights=weights, snapshot=snapshot, now=now)


def wanted_of(
    ground: Ground, engine: str, *, draft_tokens: int | None = None
) -> tuple[Service | None, tuple[str, ...]]:
    """The service that the ground's lock makes, None where it cannot, and every reason against serving it.

    draft_tokens: instead of the lock's; 0 leaves the drafter out.
    """
    weights = ground.weights[:1] if draft_tokens == 0 else ground.weights
    try:
        wanted = _wanted(engine, ground, weights, draft_tokens)
    except AerieError as error:
        return None, tuple(str(one) for one in error.parts)
    findings = _findings(wanted, ground.lock, ground.host, ground.snapshot)
    return wanted, (*refusals(wanted, ground.now, ground.snapshot), *map(_told, findings))


def prepare_rollback(host: str, model: str, *, inventory_file: Path | None = None) -> Prepared:
    """The plan of going back to what served the model before. Raises UsageError where nothing did."""
    path = inventory_file or repository() / "inventory" / "hosts.yml"
    named = inventory.host(host, path)
    now = look(named, model)
    if now.previous is None or now.previous not in now.services:
        raise UsageError(
            f"host {host}: {model}",
            seen="no service before the present one",
            expected="one that was changed by ./invoke serve",
            remedy=f"See ./invoke serve --host {host} --model {model} --status.",
        )
    action = Action.ATTACH if now.job == "running" else Action.CHANGE
    wanted = now.services[now.previous]
    plan = ServePlan(host=host, model=model, action=action, slot=now.previous, wanted=wanted, now=now)
    # Who goes back has his reason, and what served before was good once.
    return Prepared(plan=plan, inventory=path, host=named, lock=inventory.lock_of(named, None, path), accept_fall=True)


def plan_of(now: Status, wanted: Service | None, problems: tuple[str, ...]) -> ServePlan:
    """What is to be done for `wanted` to serve, None where that cannot be made; problems: what is against it."""
    live = now.live
    slot: Slot = "blue" if live is None else other(live)
    notes: tuple[str, ...] = ()
    if now.job == "running":
        action = Action.ATTACH
    elif live is not None and now.services.get(live) == wanted and now.is_serving:
        action, slot = Action.NOTHING, live
    elif problems:
        action = Action.REFUSE
    elif live is None:
        action = Action.START
    else:
        action = Action.CHANGE
        notes = _notes(wanted)
    return ServePlan(
        host=now.host, model=now.model, action=action, slot=slot, wanted=wanted, now=now, problems=problems, notes=notes
    )


def _notes(wanted: Service | None) -> tuple[str, ...]:
    if wanted and wanted.beside_bytes == 0:
        room = "the GPUs hold one engine: the one that serves stops first, and comes back if the new one fails"
    else:
        gib = wanted.beside_bytes / 2**30 if wanted else 0
        room = f"the new one starts beside the old one where {gib:.1f} GiB of memory are free, else after it"
    judged = "it serves only if no less of its drafts is accepted than in the last good run, on fixed prompts"
    return (room, judged) if wanted and wanted.drafter else (room,)


def _weights(lock: Lock, name: str) -> Weights:
    pin = models.model_of(lock, name).manifest_sha256
    return Weights(model=name, folder=target(lock.weights.path, name, pin), manifest_sha256=pin)


def _wanted(engine: str, ground: Ground, weights: Sequence[Weights], draft_tokens: int | None) -> Service:
    """The service. Raises AerieError where the host lacks what it is made from, or the engine cannot."""
    host, now, snapshot = ground.host, ground.now, ground.snapshot
    environment = launching.environment_of(ground.lock.engine.models.get(now.model, EngineModel()))
    version = next((now.engines[name] for name in (engine, f"{engine}-cpu") if name in now.engines), None)
    if version is None:
        raise launching.missing(engine, f"host {host.name}: {environment}", now.engines)
    staged = [snapshot.weights.staged.get(one.folder) for one in weights]
    config = now.configs[weights[0].folder]
    if config is None:
        raise AerieError(
            f"host {host.name}: {weights[0].folder}",
            seen="no config.json",
            expected=f"{weights[0].model}, staged",
            remedy=f"./invoke stage --host {host.name} --model {weights[0].model}",
        )
    return launching.service_of(
        now.model,
        engine,
        lock=ground.lock,
        version=version,
        weights=weights,
        config=config,
        size_bytes=sum(one.size_bytes for one in staged if isinstance(one, StagedModel)),
        gpus=host.gpus.count,
        arch=_arch(snapshot) if host.gpus.count else "cpu",
        draft_tokens=draft_tokens,
    )


def refusals(wanted: Service, now: Status, snapshot: Snapshot) -> Iterator[str]:
    """What the capability table and the gates say against it."""
    doing = frozenset({"eagle3"} if wanted.drafter else ())
    config = now.configs[wanted.weights[0].folder] or {}
    known = capability.table().models
    model = next((known[name] for name in config.get("architectures") or () if name in known), "")
    arch = _arch(snapshot) if wanted.gpus else "cpu"
    wish = capability.Wish(engine=wanted.engine, version=wanted.version, arch=arch, model=model, doing=doing)
    for reason, remedy, source in capability.can_serve(wish).reasons:
        yield f"{reason} {remedy} ({source})"
    yield from _ports(wanted, snapshot)
    own = [unit_of(now.model, slot) for slot in now.services]
    document = json.loads(json.dumps(asdict(snapshot)))
    for stop in gates.judge(wanted, document, own):
        remedy = stop.remedy.replace("HOST", now.host)
        yield f"{stop.finding}: {stop.seen}, expected {stop.expected}. {remedy}"


def _ports(wanted: Service, snapshot: Snapshot) -> Iterator[str]:
    """Other models that are served on one of the three ports: nginx would take the first, and say nothing."""
    served = () if isinstance(snapshot.engine.services, Unknown) else snapshot.engine.services
    for one in served:
        first = int(one.address.rpartition(":")[2])
        if one.model != wanted.model and abs(first - (wanted.port - 1)) <= len(SLOTS):
            taken = f"{one.model} has {first} to {first + len(SLOTS)}"
            remedy = f'Change port in [engine.models."{wanted.model}"] of the lock.'
            yield f"port {wanted.port - 1} and the next two: {taken}, expected ports of its own. {remedy}"


def _findings(wanted: Service, lock: Lock, host: Host, snapshot: Snapshot) -> Iterator[Finding]:
    """Fatal findings that an engine would meet, but for those that the gates tell."""
    told = {"driver.not-loaded", "driver.nvml-failed", "driver.gpu-lost", "driver.gpu-missing", "driver.ecc-errors",
            "driver.remap-failed", "driver.recovery-needed"}  # fmt: skip
    for finding in diff(lock, snapshot, host):
        is_met = wanted.gpus > 0 and finding.layer in OF_GPUS
        if is_met and finding.severity is Severity.FATAL and finding.id not in told:
            yield finding


def _told(finding: Finding) -> str:
    return f"{finding.id}: {finding.seen}, expected {finding.expected}. {finding.remedy}"


def _arch(snapshot: Snapshot) -> str:
    """The architecture of the host's GPUs, as the capability table calls it."""
    gpus = () if isinstance(snapshot.gpus, Unknown) else snapshot.gpus
    return gpu_arch.of([gpu.compute_capability for gpu in gpus])
