"""What staging a model on hosts would do: one question to each host, nothing changed."""

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from aerie import inventory, remote
from aerie.errors import AerieError, UsageError
from aerie.inventory import Host, lock_of
from aerie.lock import Lock, Weights
from aerie.paths import repository

from . import manifest as manifests
from . import models, shipping
from .document import document, target
from .manifest import Manifest

__all__ = [
    "SCHEMA",
    "HostPlan",
    "HostState",
    "Look",
    "Options",
    "Prepared",
    "Problem",
    "StagePlan",
    "lock_for",
    "plan_of",
    "prepare",
]

SCHEMA = "aerie.stage-plan/1"
WARM = 0.98  # of the bytes in the page cache: a load then reads next to nothing


class HostState(StrEnum):
    """What is to be done on a host."""

    STAGED = "staged"  # nothing: every file is verified, and in memory where it may be
    TO_STAGE = "to-stage"
    RUNNING = "running"  # a staging is at work there already; it is attached to
    BLOCKED = "blocked"  # nothing may be begun before a person acted
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What stands in the way on a host."""

    where: str
    seen: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.seen}, expected {self.expected}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a host has of the model, and what it has room for. Bytes; resident: in the page cache, None where unasked.

    stale: bytes on disk of partial files of other tools or other manifests, by path.
    """

    files: int
    files_verified: int
    bytes_present: int
    bytes_partial: int
    bytes_to_fetch: int
    bytes_free: int
    bytes_needed: int
    bytes_resident: int | None
    why_not_warm: str | None
    stale: Mapping[str, int]
    problems: tuple[Problem, ...]
    job: str
    is_recorded: bool
    can_seed: bool

    @classmethod
    def of(cls, host: str, answer: Mapping[str, Any]) -> "Look":
        """The answer of hostjob's look on this host. Raises AerieError where the staging itself was refused."""
        plan = answer["plan"]
        if "error" in plan:
            raise AerieError(**plan["error"])
        return cls(
            files=plan["files"]["total"],
            files_verified=plan["files"]["verified"],
            bytes_present=plan["bytes"]["present"],
            bytes_partial=plan["bytes"]["partial"],
            bytes_to_fetch=plan["bytes"]["to_fetch"],
            bytes_free=plan["free_bytes"],
            bytes_needed=plan["needed_bytes"],
            bytes_resident=answer["resident_bytes"],
            why_not_warm=plan["why_not_warm"],
            stale={one["path"]: one["bytes"] for one in plan["partials"] if not one["is_open"]},
            problems=tuple(
                Problem(**{**one, "remedy": one["remedy"].replace("HOST", host)}) for one in plan["problems"]
            ),
            job=answer["job"],
            is_recorded=answer["is_recorded"],
            can_seed=answer["can_seed"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """One host. look: None where it gave no answer; error: why it did not, or why nothing may be begun."""

    host: str
    state: HostState
    look: Look | None = None
    error: str = ""

    @property
    def is_usable(self) -> bool:
        """May it take part?"""
        return self.state not in (HostState.BLOCKED, HostState.UNREACHABLE)

    def to_dict(self) -> dict[str, Any]:
        """As `stage --plan --json` has it."""
        return {
            "host": self.host,
            "state": str(self.state),
            "look": self.look and asdict(self.look),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """All hosts, in the inventory's order. seeder: the one that fetches from the source, "" where none does."""

    model: str
    manifest_sha256: str
    files: int
    size_bytes: int
    seeder: str
    hosts: tuple[HostPlan, ...]

    @property
    def at_work(self) -> tuple[HostPlan, ...]:
        """The hosts where something is to be done."""
        return tuple(host for host in self.hosts if host.state in (HostState.TO_STAGE, HostState.RUNNING))

    @property
    def is_shared(self) -> bool:
        """Do hosts give files to each other?"""
        usable = [host for host in self.hosts if host.is_usable]
        return len(usable) > 1 and any(host.look and host.look.bytes_to_fetch for host in usable)

    @property
    def exit_code(self) -> int:
        """1 where a host cannot be staged, else 0."""
        return 0 if all(host.is_usable for host in self.hosts) else 1

    def to_dict(self) -> dict[str, Any]:
        """The document of `stage --plan --json`."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "manifest_sha256": self.manifest_sha256,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "seeder": self.seeder,
            "hosts": [host.to_dict() for host in self.hosts],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run's choices. deep: hash what is there again; sweep_partials: remove what other tools left half.

    source: where to look before the lock's own source, as `document` takes it.
    """

    deep: bool = False
    warm: bool = True
    sweep_partials: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan and what it was made from. addresses: on which hosts reach each other, by name."""

    plan: StagePlan
    inventory: Path
    hosts: Mapping[str, Host]
    addresses: Mapping[str, str]
    weights: Weights
    manifest: Manifest
    options: Options

    @property
    def target(self) -> str:
        """The folder on each host."""
        return target(self.weights.path, self.manifest.model, self.plan.manifest_sha256)

    @property
    def job_folder(self) -> str:
        """The folder of the job on each host."""
        return f"{shipping.JOBS}/stage-{self.manifest.model}-{self.plan.manifest_sha256[:12]}"

    def spec(self, host: str, among: Sequence[str], *, may_use_origin: bool) -> bytes:
        """The staging of one host as its job is told. among: all that take part and serve what they have."""
        others = [name for name in among if name != host and name in self.addresses]
        folder = self.target.rsplit("/", 1)[1]
        told = document(
            self.weights,
            self.manifest,
            source=self.options.source,
            peers=[{"name": name, "url": self._url(name, folder)} for name in others],
            position=[*among, host].index(host),
            may_use_origin=may_use_origin,
            warm="auto" if self.options.warm else "no",
            sweep_partials=self.options.sweep_partials,
            deep=self.options.deep,
        )
        return json.dumps(told).encode()

    def _url(self, name: str, folder: str) -> str:
        address = self.addresses[name]
        return f"http://{f'[{address}]' if ':' in address else address}:{self.weights.port}/{folder}/"


def prepare(
    pattern: str,
    model: str,
    *,
    inventory_file: Path | None = None,
    from_host: str = "",
    options: Options | None = None,
    forks: int = 16,
) -> Prepared:
    """The plan of staging the model on these hosts. from_host: the one to fetch from the source, added where need be.

    Raises UsageError for an unknown host or model, and where the hosts' locks name different manifests; AerieError
    where the lock has no manifest of the model.
    """
    path = inventory_file or repository() / "inventory" / "hosts.yml"
    first = [inventory.host(from_host, path)] if from_host else []
    hosts = {host.name: host for host in (*first, *inventory.select(pattern, path))}
    lock = lock_for(hosts.values(), model, path)
    found = models.load(lock, model, inventory.folder(path))
    empty = StagePlan(
        model=model,
        manifest_sha256=manifests.digest(found),
        files=len(found.files),
        size_bytes=found.size_bytes,
        seeder="",
        hosts=(),
    )
    addresses = _addresses(hosts.values()) if len(hosts) > 1 else {}
    prepared = Prepared(
        plan=empty,
        inventory=path,
        hosts=hosts,
        addresses=addresses,
        weights=lock.weights,
        manifest=found,
        options=options or Options(),
    )
    return replace(prepared, plan=plan_of(prepared, forks))


def plan_of(prepared: Prepared, forks: int) -> StagePlan:
    """Ask every host; the first usable one is the seeder, and asked whether the source answers."""
    names = list(prepared.hosts)
    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(names)))) as pool:
        plans = dict(zip(names, pool.map(lambda name: _look(prepared, name, names[0]), names), strict=True))
    seeder = names[0]
    while not plans[seeder].is_usable:
        rest = [name for name in names[names.index(seeder) + 1 :] if plans[name].is_usable]
        if not rest:
            seeder = ""
            break
        seeder = rest[0]
        plans[seeder] = _look(prepared, seeder, seeder)
    hosts = tuple(plans[name] for name in names)
    return replace(prepared.plan, hosts=hosts, seeder=seeder if any(_fetches(host) for host in hosts) else "")


def _fetches(host: HostPlan) -> bool:
    return host.is_usable and host.look is not None and host.look.bytes_to_fetch > 0


def _look(prepared: Prepared, name: str, seeder: str) -> HostPlan:
    spec = json.loads(prepared.spec(name, list(prepared.hosts), may_use_origin=name == seeder))
    stdin = json.dumps({**spec, "folder": prepared.job_folder}).encode()
    try:
        look = Look.of(name, shipping.ask(prepared.hosts[name], ["look"], stdin=stdin))
    except remote.Unreachable as error:
        return HostPlan(host=name, state=HostState.UNREACHABLE, error=str(error))
    except AerieError as error:
        return HostPlan(host=name, state=HostState.BLOCKED, error=str(error))
    return HostPlan(
        host=name, look=look, state=_state(look, prepared.options), error="\n".join(map(str, look.problems))
    )


def _state(look: Look, options: Options) -> HostState:
    if look.job == "running":
        return HostState.RUNNING
    if look.problems:
        return HostState.BLOCKED
    is_verified = look.files_verified == look.files and look.is_recorded and not options.deep
    total = look.bytes_present
    is_warm = not options.warm or look.why_not_warm is not None or (look.bytes_resident or 0) >= WARM * total
    return HostState.STAGED if is_verified and is_warm else HostState.TO_STAGE


def lock_for(hosts: Iterable[Host], model: str, path: Path) -> Lock:
    """The lock of these hosts, as far as this model is concerned: all must name one manifest of it."""
    locks = {host.name: lock_of(host, None, path) for host in hosts}
    pins = {name: models.model_of(lock, model).manifest_sha256 for name, lock in locks.items()}
    if len(set(pins.values())) > 1:
        seen = ", ".join(f"{name} {pin[:12] or 'none'}" for name, pin in pins.items())
        raise UsageError(
            f"manifest of {model}", seen=seen, expected="one for all", remedy="Stage hosts of one lock at a time."
        )
    return next(iter(locks.values()))


def _addresses(hosts: Iterable[Host]) -> dict[str, str]:
    """The address of each host as the others reach it: weights_address of the inventory, else its own, resolved.

    A host whose name does not resolve has none: nobody reaches it, and its own look says so.
    """
    found = {}
    for host in hosts:
        with suppress(OSError):
            address = str(host.variables.get("weights_address") or host.address)
            found[host.name] = str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    return found
