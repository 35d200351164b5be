"""Bringing extensions to hosts as planned: built once, installed everywhere, followed to the end."""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any

from aerie import remote
from aerie.errors import AerieError
from aerie.remote import transfer
from aerie.snapshot import Snapshot, Unknown

from . import plans, proof, store
from .bringing import SPEC
from .decide import Action, Build, Candidate
from .onhost.proofs import MODULES
from .onhost.request import REQUEST
from .plans import BuildPlan, Row
from .shipping import HOSTJOB

__all__ = ["SCHEMA", "HostResult", "Listener", "Outcome", "State", "bring"]

SCHEMA = "aerie.build/1"
POLL_S = 1.0
RETRY_S = 5.0
CONTACT_S = 120.0  # a job goes on without its controller; after so long the host is told as lost to us

Listener = Callable[[Row, str], None]
"""Called with a row and what is going on there, about once a second."""


class State(StrEnum):
    """How it ended for one package on one host."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """One package on one host. action: what was done. build: the figures of a build (aerie.built/1), else None.

    proof: what its kernels did on the host's GPUs (aerie.proof/1); None where it was not installed anew, where the host
    has no GPU that answers, and for packages that nobody wrote a proof of.
    notes: what to know all the same, sentences: of the build, and where cuobjdump lists other device code.
    """

    host: str
    package: str
    version: str
    state: State
    action: str
    error: str = ""
    was_attached: bool = False
    seconds: float = 0.0
    wheel: str = ""
    wheel_sha256: str = ""
    replaced: str = ""
    build: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As `build --json` has it."""
        return {
            "host": self.host,
            "package": self.package,
            "version": self.version,
            "state": str(self.state),
            "action": self.action,
            "error": self.error,
            "attached": self.was_attached,
            "seconds": self.seconds,
            "wheel": self.wheel,
            "wheel_sha256": self.wheel_sha256,
            "replaced": self.replaced,
            "build": self.build and dict(self.build),
            "proof": self.proof and dict(self.proof),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan, in its order."""

    results: tuple[HostResult, ...]
    wall_s: float

    @property
    def exit_code(self) -> int:
        """1 where one is not brought, else 0."""
        return 0 if all(one.state in (State.DONE, State.UNCHANGED) for one in self.results) else 1

    def to_dict(self) -> dict[str, Any]:
        """The document of `build --json`."""
        return {"schema": SCHEMA, "results": [one.to_dict() for one in self.results], "wall_s": round(self.wall_s, 3)}


def bring(plan: BuildPlan, *, forks: int = 16, listener: Listener = lambda row, note: None) -> Outcome:
    """Do it: first what can be done at once, then the hosts that install what another one has built by then."""
    began = time.monotonic()
    later = [row for row in plan.rows if row.decision and row.decision.action is Action.AFTER]
    now = [row for row in plan.rows if not (row.decision and row.decision.action is Action.AFTER)]
    done: dict[tuple[str, str], HostResult] = {}
    left = Event()

    def heard(row: Row, note: str) -> None:
        if left.is_set():
            raise AerieError(
                f"host {row.host.name}", seen="nobody follows its job any more", expected="an end",
                remedy="The job goes on by itself; the same command attaches to it.",
            )  # fmt: skip
        listener(row, note)

    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(plan.rows)))) as pool:
        try:
            for rows, work in ((now, _bring), (later, _bring_again)):
                found = pool.map(lambda row, work=work: work(row, heard), rows)
                done |= {(row.host.name, row.package.name): one for row, one in zip(rows, found, strict=True)}
        except BaseException:  # Ctrl-C: the pool waits for its threads, and they for hours of compilers
            left.set()
            raise
    results = tuple(done[row.host.name, row.package.name] for row in plan.rows)
    return Outcome(results=results, wall_s=time.monotonic() - began)


def _is_build(row: Row) -> bool:
    return row.decision is not None and row.decision.action is Action.BUILD


def _bring_again(row: Row, listener: Listener) -> HostResult:
    """After another host built: the wheel is in the controller's store now, unless that build failed."""
    (probed,) = remote.probe_all((row.host,)).values()
    fresh = plans.look(row, probed)
    if fresh.decision and fresh.decision.action not in (Action.INSTALL, Action.NOTHING):
        error = "the host that was to build its wheel did not. Mend what it says, then ./invoke build again"
        return _result(fresh, State.FAILED, error=error)
    return _bring(fresh, listener)


def _bring(row: Row, listener: Listener) -> HostResult:
    decision = row.decision
    if decision is None:
        return _result(row, State.UNREACHABLE if row.is_unreachable else State.FAILED, error=row.error)
    if decision.action is Action.NOTHING:
        return _result(row, State.UNCHANGED)
    if decision.action is Action.REFUSED:
        return _result(row, State.FAILED, error="; ".join(decision.reasons))
    try:
        with remote.Session(row.host) as session:
            result = _job(row, session, listener)
            if result.build is not None and result.state is State.DONE:
                listener(row, "keeping its wheel for other hosts")
                _keep(row)
        return _proven(row, result, listener) if result.state is State.DONE else result
    except remote.Unreachable as error:
        return _result(row, State.UNREACHABLE, error=str(error))
    except AerieError as error:
        return _result(row, State.FAILED, error=str(error))


def _proven(row: Row, result: HostResult, listener: Listener) -> HostResult:
    """The result with the proof of what was installed; failed where a GPU does not do with it what it should."""
    if row.package.name not in MODULES:
        return result
    (probed,) = remote.probe_all((row.host,)).values()
    if not isinstance(probed, Snapshot):
        raise probed
    gpus = () if isinstance(probed.gpus, Unknown) else tuple(gpu for gpu in probed.gpus if not gpu.error)
    if not gpus:
        return result
    listener(row, "launching its kernels on every GPU")
    python = f"/opt/aerie/environments/{row.package.environment}/bin/python"
    found = proof.prove(row.host, package=row.package.name, python=python, gpus=gpus)
    if found.is_proven:
        return replace(result, proof=found.to_dict())
    error = "; ".join(f"{one.finding}: {one.seen}, expected {one.expected}" for one in found.shortfalls)
    return replace(result, proof=found.to_dict(), state=State.FAILED, error=f"installed, but {error}")


def _job(row: Row, session: remote.Session, listener: Listener) -> HostResult:
    spec = json.dumps(_spec(row, listener)).encode()
    started = _ask(row, session, "start", spec)
    told = _follow(row, session, listener)
    outcome = told["outcome"]
    if outcome is None:
        how = (told["result"] or {}).get("outcome", "lost")
        said = "\n".join(told["log"]) or "nothing in its log"
        return _result(row, State.FAILED, error=f"its job ended without an outcome ({how}): {said}")
    if outcome["state"] == "unfit" and (fresh := _next(row)):
        listener(fresh, f"{outcome['error']['where']} has no code for these GPUs: {fresh.state} {_what(fresh)}")
        return _job(fresh, session, listener)
    error = AerieError(**outcome["error"]) if outcome.get("error") else None
    record = outcome["record"] or {}
    return _result(
        row,
        State.DONE if outcome["state"] == "done" else State.FAILED,
        error=str(error) if error else "",
        was_attached=not started["is_new"],
        seconds=outcome["seconds"],
        wheel=record.get("wheel", ""),
        wheel_sha256=record.get("wheel_sha256", ""),
        replaced=outcome.get("replaced", ""),
        build=outcome["build"],
        notes=_notes(outcome),
    )


def _notes(outcome: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a job's outcome: a build's own, then each library that cuobjdump reads otherwise."""
    checked = (outcome["record"] or {}).get("cross_check") or {"differences": ()}
    return (*((outcome["build"] or {}).get("notes", ())), *checked["differences"])


def _next(row: Row) -> Row | None:
    """What the lock has after a wheel that was unfit: another one, or the build that was part of the plan."""
    (probed,) = remote.probe_all((row.host,)).values()
    fresh = plans.look(row, probed)
    was_agreed = row.decision is not None and row.decision.falls_back
    # Never the same again, whatever the host says of it: that would not end.
    is_next = _digest(fresh) not in ("", _digest(row)) and not _is_build(fresh)
    return fresh if is_next or (_is_build(fresh) and was_agreed) else None


def _digest(row: Row) -> str:
    """Of the wheel that is to be installed, "" where none is."""
    wheel = row.decision.candidate if row.decision else None
    return wheel.digest if wheel else ""


def _what(row: Row) -> str:
    wheel = row.decision.candidate if row.decision else None
    return wheel.name if wheel else "from source"


def _follow(row: Row, session: remote.Session, listener: Listener) -> dict[str, Any]:
    """What poll says of the job once it ended. A host that cannot be reached for a while is waited for."""
    lost_at: float | None = None
    while True:
        try:
            told = _ask(row, session, "poll")
            lost_at = None
        except remote.Unreachable as error:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > CONTACT_S:
                raise
            listener(row, f"no contact for now, its job goes on: {error.seen}")
            time.sleep(RETRY_S)
            continue
        listener(row, str(told["progress"]["note"] if told["progress"] else "waiting for its job"))
        if told["job"] != "running":
            return told
        time.sleep(POLL_S)


def _ask(row: Row, session: remote.Session, verb: str, stdin: bytes = b"") -> dict[str, Any]:
    answer = HOSTJOB.ask(row.host, [verb, row.folder], stdin=stdin, runner=session.run)
    if "error" in answer:
        raise AerieError(**answer["error"])
    return answer


def _spec(row: Row, listener: Listener) -> dict[str, Any]:
    """The document aerie.bringing/1. A wheel of the controller's store is sent along."""
    decision, package, settings = row.decision, row.package, row.lock.extensions
    assert decision is not None and row.target is not None, "asked for rows that were decided only"
    wheel, made = decision.candidate, decision.build
    is_build = decision.action is Action.BUILD
    digest = made.key.digest if is_build and made else wheel.digest if wheel else ""
    locked = next((one for one in package.wheels if one.sha256 == digest), None)
    return {
        "schema": SPEC,
        "package": package.name,
        "version": package.version,
        "environment": package.environment,
        "module": package.module,
        "torch": row.target.torch,
        "cuda_home": row.lock.cuda.path,
        "capabilities": list(row.capabilities),
        "unused": list(package.unused),
        "store": settings.store,
        "digest": digest,
        "rebuild": is_build and row.is_rebuild,
        "sent": _send(row, wheel, listener) if wheel and not is_build and wheel.where == plans.OWN else None,
        "wheel": locked.model_dump() if locked and not is_build else None,
        "source": package.source.model_dump() if is_build and package.source else None,
        "key": json.loads(made.key.text) if is_build and made else None,
        "build": _request(row, made) if is_build and made else None,
    }


def _request(row: Row, made: Build) -> dict[str, Any]:
    """The document aerie.build/1 without what only the host knows: the paths of source, interpreter and folders."""
    return {
        "schema": REQUEST,
        "package": row.package.name,
        "version": row.package.version,
        "cuda_home": row.lock.cuda.path,
        "architectures": list(row.capabilities),
        "jobs": made.sizing.jobs,
        "nvcc_threads": made.sizing.nvcc_threads,
        "budget_bytes": made.sizing.budget_bytes,
        "patches": plans.patches(row.package),
        "options": dict(row.package.options),
        "unit_bytes": made.sizing.memory_bytes // made.sizing.jobs,
        "compiler_cache": row.lock.extensions.compiler_cache,
    }


def _send(row: Row, wheel: Candidate, listener: Listener) -> dict[str, Any]:
    mine = plans.controller_store()
    entry = store.find(mine, wheel.digest)
    if entry is None:
        raise AerieError(
            str(mine / wheel.digest), seen="no such entry", expected=wheel.name, remedy="Run ./invoke build again."
        )
    try:
        entry.check()
    except store.Damaged:
        store.set_aside(mine, wheel.digest)
        raise
    listener(row, f"sending {wheel.name}")
    path = f"{row.folder}/scratch/{wheel.name}"
    transfer.send(row.host, entry.wheel, path, sudo=True)
    return {"path": path, "statement": dict(entry.statement)}


def _keep(row: Row) -> None:
    """Bring the wheel that a host built into the controller's store."""
    assert row.decision is not None and row.decision.build is not None, "called after a build"
    digest = row.decision.build.key.digest
    folder = f"{row.lock.extensions.store}/{digest}"
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch, store.RECEIPT)
        transfer.fetch(row.host, f"{folder}/{store.RECEIPT}", told, sudo=True)
        statement = json.loads(told.read_bytes())
        wheel = Path(scratch, store.of_statement(Path(scratch), statement).wheel.name)
        transfer.fetch(row.host, f"{folder}/{wheel.name}", wheel, sudo=True)
        if row.is_rebuild:
            store.set_aside(plans.controller_store(), digest)
        store.add(plans.controller_store(), digest, wheel, statement)


def _result(row: Row, state: State, **more: Any) -> HostResult:
    return HostResult(
        host=row.host.name, package=row.package.name, version=row.package.version, state=state, action=row.state, **more
    )
