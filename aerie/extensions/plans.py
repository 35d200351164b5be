"""What bringing extensions to hosts would do: one question to each host for each package, nothing changed."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aerie import inventory, remote
from aerie.choice import unknown_name
from aerie.errors import AerieError, UsageError
from aerie.findings.case import known
from aerie.inventory import Host, lock_of
from aerie.lock import Extension, Lock, with_variables
from aerie.paths import cache_dir, repository

from . import beside, contents, decide, running, store
from .build_key import BuildKey
from .decide import Action, Build, Candidate, Decision, Estimate, Installed
from .shipping import HOSTJOB, JOBS
from .sizing import Capacity, Limit, size
from .units import UnitMemory, unit_memory
from .wheels import Target

__all__ = ["SCHEMA", "BuildPlan", "Row", "controller_store", "look", "patches", "prepare"]

SCHEMA = "aerie.build-plan/1"
OWN = "the controller's store"
UNMEASURED_BYTES = 6_656_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One package on one host. decision: None where the host could not be asked: error says why.

    job: "running" where an earlier command's job is at work, which is attached to. is_rebuild: a build was asked for.
    """

    host: Host
    lock: Lock
    package: Extension
    decision: Decision | None = None
    target: Target | None = None
    capabilities: tuple[str, ...] = ()
    job: str = "none"
    is_rebuild: bool = False
    damaged: tuple[str, ...] = ()
    error: str = ""
    is_unreachable: bool = False

    @property
    def folder(self) -> str:
        """The folder of its job on the host."""
        return f"{JOBS}/extension-{self.package.name}-{self.package.version}"

    @property
    def state(self) -> str:
        """The action, or "unreachable" or "unknown" where there is none."""
        if self.decision is not None:
            return str(self.decision.action)
        return "unreachable" if self.is_unreachable else "unknown"

    def to_dict(self) -> dict[str, Any]:
        """As `build --plan --json` has it."""
        found = self.decision
        made = found.build if found else None
        wheel = found.candidate if found else None
        return {
            "host": self.host.name,
            "package": self.package.name,
            "version": self.package.version,
            "environment": self.package.environment,
            "action": self.state,
            "reasons": list(found.reasons) if found else [],
            "architectures": list(self.capabilities),
            "wheel": wheel and {"name": wheel.name, "where": wheel.where, "is_read": wheel.contents is not None},
            "build": _build_document(made) if made and found and found.action is not Action.INSTALL else None,
            "builds_where_unfit": bool(found and found.falls_back),
            "job": self.job,
            "damaged": list(self.damaged),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Every package on every host, in the inventory's order. rebuild: asked for."""

    rows: tuple[Row, ...]
    rebuild: bool = False

    @property
    def at_work(self) -> tuple[Row, ...]:
        """Where something is to be done."""
        idle = (Action.NOTHING, Action.REFUSED)
        return tuple(row for row in self.rows if row.decision and row.decision.action not in idle)

    @property
    def exit_code(self) -> int:
        """1 where something cannot be brought, else 0."""
        return 0 if all(row.decision and row.decision.action is not Action.REFUSED for row in self.rows) else 1

    def to_dict(self) -> dict[str, Any]:
        """The document of `build --plan --json`."""
        return {"schema": SCHEMA, "rows": [row.to_dict() for row in self.rows]}


def controller_store() -> Path:
    """The store on this machine, from which other hosts install."""
    return cache_dir() / "wheels"


def prepare(
    pattern: str,
    names: Sequence[str] = (),
    *,
    inventory_file: Path | None = None,
    rebuild: bool = False,
    forks: int = 16,
) -> BuildPlan:
    """The plan of these packages on these hosts; without names, of all that each host's lock requires.

    Raises UsageError for an unknown host or package, before any host is asked.
    """
    path = inventory_file or repository() / "inventory" / "hosts.yml"
    hosts = inventory.select(pattern, path)
    rows = []
    for host in hosts:
        lock = with_variables(lock_of(host, None, path), host.variables)
        rows += [Row(host=host, lock=lock, package=one) for one in _wanted(lock, names)]
    probed = remote.probe_all(tuple(hosts), forks=forks)
    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(rows)))) as pool:
        done = pool.map(lambda row: look(row, probed[row.host.name], rebuild=rebuild), rows)
        return BuildPlan(rows=tuple(_once(list(done))), rebuild=rebuild)


def _once(rows: Sequence[Row]) -> Iterator[Row]:
    """Of hosts that need the same build only the first one builds; what the others lack for a build is no matter."""
    first: dict[str, Row] = {}
    for row in rows:
        if row.decision and row.decision.action is Action.BUILD and row.decision.build:
            first.setdefault(row.decision.build.key.digest, row)
    for row in rows:
        found = row.decision
        builder = first.get(found.build.key.digest) if found and found.build else None
        if found is None or builder in (None, row) or found.action not in (Action.BUILD, Action.REFUSED):
            yield row
            continue
        assert builder is not None, "it is one of them"
        reason = f"{builder.host.name} builds the same, and this host installs it"
        yield replace(row, decision=replace(found, action=Action.AFTER, reasons=(reason, *found.reasons)))


def _wanted(lock: Lock, names: Sequence[str]) -> list[Extension]:
    packages = {one.name: one for one in lock.extensions.packages}
    wanted = names or lock.extensions.required
    for name in wanted:
        if name not in packages:
            raise unknown_name(f"extension of lock {lock.name}", name, packages)
    if not wanted:
        raise UsageError(
            f"lock {lock.name}",
            seen="no required extension",
            expected="one or more in [extensions] required, or --package",
            remedy=f"It can have {', '.join(packages) or 'none'}.",
        )
    return [packages[name] for name in wanted]


def look(row: Row, probed: Any, *, rebuild: bool = False) -> Row:
    """The row with what its host says. probed: the host's snapshot, or why there is none."""
    if isinstance(probed, AerieError):
        return replace(row, error=str(probed), is_unreachable=isinstance(probed, remote.Unreachable))
    package, settings = row.package, row.lock.extensions
    asked = {"package": package.name, "wheels": [one.sha256 for one in package.wheels]}
    asked |= {"environment": package.environment, "store": settings.store, "folder": row.folder}
    try:
        capabilities = _capabilities(row.host, probed)
        question = json.dumps({**asked, "running": beside.asked(probed)})
        answer = HOSTJOB.ask(row.host, ["look"], stdin=question.encode())
        if "error" in answer:
            raise AerieError(**answer["error"])
        target = _target(package, answer["environment"])
        build = _build(row, answer, target, capabilities, probed)
        installed = _installed(answer["installed"])
        stored = _of_stores(package, settings.store, answer["store"])
        candidates = [*stored, *_of_lock(package, {one.digest for one in stored})]
    except remote.Unreachable as error:
        return replace(row, error=str(error), is_unreachable=True)
    except AerieError as error:
        return replace(row, error=str(error))
    decision = decide.decide(package, target, capabilities, candidates, installed, build, rebuild=rebuild)
    reasons = tuple(one.replace("HOST", row.host.name) for one in decision.reasons)
    return replace(
        row,
        decision=replace(decision, reasons=reasons),
        target=target,
        capabilities=capabilities,
        job=answer["job"],
        is_rebuild=rebuild,
        damaged=tuple(answer["damaged"]),
        error="",
    )


def _capabilities(host: Host, snapshot: Any) -> tuple[str, ...]:
    gpus = known(snapshot.gpus) or ()
    found = tuple(sorted({gpu.compute_capability for gpu in gpus if gpu.error is None}))
    if not found:
        raise AerieError(
            f"host {host.name}",
            seen=f"no GPU by NVML ({snapshot.driver.nvml_error or 'none there'})",
            expected="one that says its compute capability",
            remedy=f"./invoke plan --host {host.name} says what is wrong with the driver.",
        )
    return found


def _target(package: Extension, told: Mapping[str, Any] | None) -> Target:
    where = f"environment {package.environment}"
    if told is None:
        raise AerieError(
            where,
            seen="not there",
            expected=f"the environment that {package.name} belongs to",
            remedy="Lock it in [[python.environments]], then ./invoke provision --layer python.",
        )
    if "no_torch" in told or not told["cuda"]:
        seen = told.get("no_torch") or f"torch {told['torch']} without CUDA"
        raise AerieError(where, seen=seen, expected="a torch for CUDA", remedy="Lock one in its requirements.")
    return Target(
        python=told["python"],
        torch=told["torch"],
        cuda=told["cuda"],
        cxx11_abi=told["cxx11_abi"],
        machine=told["machine"],
        glibc=(told["glibc"][0], told["glibc"][1]),
    )


def _installed(told: Mapping[str, Any] | None) -> Installed | None:
    if told is None:
        return None
    record = told["record"]
    if record is None:
        return Installed(version=told["version"])
    rows = {name: one["code"] for name, one in record["libraries"].items() if one["code"]}
    return Installed(
        version=told["version"],
        torch=record["torch"],
        contents=contents.parse({"libraries": rows, "torch": ""}),
        changed=tuple(told["changed"]),
    )


def _of_stores(package: Extension, place: str, told: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """The host's own first: it need not be sent. Of wheels that were fetched only those that the lock has."""
    locked = {wheel.sha256 for wheel in package.wheels}
    there = [store.of_statement(Path(place, one["digest"]), one["statement"]) for one in told]
    mine = [one for one in store.entries(controller_store()) if isinstance(one, store.Entry)]
    found: dict[str, Candidate] = {}
    for where, entries in (("the host's store", there), (OWN, mine)):
        for one in entries:
            is_built = one.key is not None and (one.package, one.version) == (package.name, package.version)
            if (is_built or one.sha256 in locked) and one.digest not in found:
                found[one.digest] = Candidate(
                    name=one.wheel.name, digest=one.digest, where=where, contents=one.contents, key=one.key
                )
    # What was built for just this host goes before what was made for many.
    return sorted(found.values(), key=lambda one: one.key is None)


def _of_lock(package: Extension, read: Set[str]) -> list[Candidate]:
    """Those that nobody has read yet."""
    return [
        Candidate(name=one.name, digest=one.sha256, where="the lock's wheel")
        for one in package.wheels
        if one.sha256 not in read
    ]


def patches(package: Extension) -> list[dict[str, str]]:
    """Names and texts of the patches of a package, in order."""
    folder = repository() / "roles" / "extensions" / "files" / "patches" / package.name / package.version
    return [{"name": name, "text": (folder / name).read_text()} for name in package.patches]


def _build(
    row: Row, answer: Mapping[str, Any], target: Target, capabilities: tuple[str, ...], snapshot: Any
) -> Build | None:
    package, lock = row.package, row.lock
    if package.source is None:
        return None
    nvcc = next((one.nvcc for one in snapshot.cuda.toolkits if one.path == lock.cuda.path), None)
    cuda = ".".join((nvcc or lock.cuda.nvcc).split(".")[:2])
    unit = _unit(package, cuda, capabilities)
    reserved, reasons = running.reserve([running.Service(**one) for one in answer["running"]])
    sizing = size(_capacity(answer["capacity"]), unit, architectures=len(capabilities), reserved_bytes=reserved)
    warnings = (*sizing.warnings, *beside.unseen(snapshot))
    sizing = replace(sizing, reasons=(*sizing.reasons, *reasons), warnings=warnings)
    key = BuildKey(
        package=package.name,
        version=package.version,
        source_sha256=_patched(package),
        options=package.options,
        python=target.python,
        torch=target.torch,
        cuda=cuda,
        cxx11_abi=target.cxx11_abi,
        architectures=capabilities,
        platform=f"manylinux_{target.glibc[0]}_{target.glibc[1]}_{target.machine}",
    )
    return Build(key=key, nvcc=nvcc, sizing=sizing, estimate=_estimate(package, unit, sizing.jobs))


def _unit(package: Extension, cuda: str, capabilities: Sequence[str]) -> UnitMemory:
    try:
        return unit_memory(package.name, version=package.version, cuda=cuda, architectures=capabilities)
    except UsageError:
        return UnitMemory(
            package=package.name, versions="", cuda="", architectures=(), units=0, bytes_per_thread=UNMEASURED_BYTES,
            basis="estimate", source="nobody measured this package; as much as the largest file of flash-attn",
        )  # fmt: skip


def _capacity(told: Mapping[str, Any]) -> Capacity:
    return Capacity(**{**told, "limits": tuple(Limit(**one) for one in told["limits"])})


def _patched(package: Extension) -> str:
    """What names the source as it is compiled: its own hash, its folder, and the hashes of its patches."""
    assert package.source is not None, "asked for packages with a source only"
    folder = package.source.folder
    if not package.patches and not folder:
        return package.source.sha256
    texts = [f"folder {folder}"] if folder else []
    texts += [hashlib.sha256(one["text"].encode()).hexdigest() for one in patches(package)]
    return hashlib.sha256("\n".join([package.source.sha256, *texts]).encode()).hexdigest()


def _estimate(package: Extension, unit: UnitMemory, jobs: int) -> Estimate | None:
    """From the last build of the same version that this controller keeps, else from what files took when measured."""
    built = [
        one.statement["predicate"]
        for one in store.entries(controller_store())
        if isinstance(one, store.Entry)
        and (one.package, one.version) == (package.name, package.version)
        and one.key is not None
        and not one.statement["predicate"]["build"]["units_cached"]
    ]
    if built:
        last = max(built, key=lambda one: str(one["made_at"]))
        basis = f"{last['build']['cpu_s']:.0f} processor seconds on {last['host']}, {last['made_at'][:10]}"
        return Estimate(seconds=last["build"]["cpu_s"] / jobs, basis=basis)
    if unit.cpu_s and unit.units:
        basis = f"{unit.units} files of {unit.cpu_s:.0f} processor seconds: {unit.basis}, and nothing in the cache"
        return Estimate(seconds=unit.cpu_s * unit.units / jobs, basis=basis)
    return None


def _build_document(build: Build) -> dict[str, Any]:
    return {
        "digest": build.key.digest,
        "nvcc": build.nvcc,
        **asdict(build.sizing),
        "reasons": list(build.sizing.reasons),
        "warnings": list(build.sizing.warnings),
        "estimate": build.estimate and asdict(build.estimate),
    }
