"""Serving a model as a service: fill a slot by a play, change to it by a job on the host, and wait for its end."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie import apply as plays
from aerie import inventory, remote
from aerie import lock as locks
from aerie.engines import arguments
from aerie.engines.watchdog.code import WATCHDOG, spec_of
from aerie.errors import AerieError, UsageError
from aerie.inventory import Host
from aerie.paths import repository, state_dir
from aerie.runbook import hostlock

from .code import SERVICE
from .onhost.definition import Service, unit_of
from .planning import Action, Prepared
from .status import Status, job_folder, look

__all__ = [
    "Judged",
    "Listener",
    "Outcome",
    "change",
    "check_arguments",
    "fill",
    "hold",
    "judge",
    "serve",
    "status",
    "stop",
]

SCHEMA = "aerie.serve/1"
JUDGED = "aerie.serve-judged/1"
POLL_S = 1.0
JUDGE_S = 1800.0  # 24 short answers, and others may be served meanwhile
GONE_S = 600.0  # a host that does not answer for so long is left to itself: the change goes on without us

Listener = Callable[[str, float], None]
"""Called about every second with what is going on, and the seconds since the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended. change: the receipt as the host keeps it, None where nothing had to be changed."""

    host: str
    model: str
    change: Mapping[str, Any] | None
    status: Status
    wall_s: float

    @property
    def exit_code(self) -> int:
        """0 what was wanted serves; 1 it does not, whether or not something else does."""
        return 0 if self.change is None or self.change["outcome"] == "switched" else 1

    def to_dict(self) -> dict[str, Any]:
        """The document of `serve --json`."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "model": self.model,
            "change": dict(self.change) if self.change else None,
            "status": self.status.to_dict(),
            "wall_s": round(self.wall_s, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a service accepts now against its last good run. acceptance: as the host tells it; None: `why` not."""

    host: str
    model: str
    acceptance: Mapping[str, Any] | None
    why: str = ""

    @property
    def fell(self) -> bool:
        """Is it proven that less is accepted?"""
        return self.acceptance is not None and bool(self.acceptance["fell"])

    @property
    def words(self) -> str:
        """In one line; a fall with its finding."""
        if self.acceptance is None:
            return f"{self.model} on {self.host}: acceptance not judged: {self.why}"
        finding = "engine.acceptance-fell: " if self.fell else ""
        return f"{self.model} on {self.host}: {finding}{self.acceptance['words']}"

    def to_dict(self) -> dict[str, Any]:
        """The document of `serve --judge --json`."""
        given = {"host": self.host, "model": self.model, "why": self.why}
        return {"schema": JUDGED, **given, "acceptance": dict(self.acceptance) if self.acceptance else None}


def judge(host: str, model: str, inventory_file: Path | None = None) -> Judged:
    """Ask what serves the model the fixed prompts, once it is up, and hold what it accepts against its last good run.

    A run that is no fall is the next one's reference. Waits while the engine loads.
    """
    named = inventory.host(host, _path(inventory_file))
    now = look(named, model)
    while now.live and now.units[now.live].get("ActiveState") == "activating":  # its unit's own time limit ends this
        time.sleep(POLL_S)
        now = look(named, model)
    if not now.is_serving:
        return Judged(host=host, model=model, acceptance=None, why="nothing serves it")
    said = SERVICE.ask(named, ["judge", model], timeout_s=JUDGE_S)
    if "error" in said:
        return Judged(host=host, model=model, acceptance=None, why=str(AerieError(**said["error"])))
    acceptance = said["acceptance"]
    return Judged(host=host, model=model, acceptance=acceptance, why="" if acceptance else "it has no drafter")


def serve(prepared: Prepared, listener: Listener = lambda phase, seconds: None) -> Outcome:
    """Carry the plan out and wait for its end; a change that is at work already is attached to.

    The change is a job on the host: it goes on when this machine dies. Raises AerieError where the play or the host
    fails, and as check_arguments does; a service that does not come up is an outcome.
    """
    plan, began = prepared.plan, time.monotonic()
    if plan.action is Action.NOTHING:
        return Outcome(host=plan.host, model=plan.model, change=None, status=plan.now, wall_s=0.0)
    with hold(plan.host, "serve"):
        if plan.action is not Action.ATTACH and not plan.is_filled:
            assert plan.wanted is not None, "a plan that is not refused says what it wants"
            listener("asking the engine's own parser", 0.0)
            check_arguments(prepared.host, [plan.wanted])
        return change(prepared, listener, began)


@contextmanager
def hold(host: str, doing: str) -> Iterator[None]:
    """Nobody else changes the host from here while the block runs. Raises AerieError where somebody does."""
    with hostlock.hold(state_dir() / "hosts" / "locks", host) as claim:
        claim(doing)
        yield


def change(prepared: Prepared, listener: Listener, began: float | None = None) -> Outcome:
    """As `serve`, for one who holds the host and has checked the arguments. began: by time.monotonic(), default now."""
    plan, began = prepared.plan, time.monotonic() if began is None else began
    if plan.action is not Action.ATTACH:
        if not plan.is_filled:
            listener("filling the slot", time.monotonic() - began)
            fill(prepared)
        told = {
            "model": plan.model,
            "to": plan.slot,
            "accept_fall": prepared.accept_fall,
            "is_tried": prepared.is_tried,
        }
        SERVICE.ask(prepared.host, ["start", job_folder(plan.model)], stdin=json.dumps(told).encode())
    receipt = _follow(prepared.host, plan.model, began, listener)
    now = look(prepared.host, plan.model)
    return Outcome(host=plan.host, model=plan.model, change=receipt, status=now, wall_s=time.monotonic() - began)


def status(host: str, model: str, inventory_file: Path | None = None) -> Status:
    """What serves the model on the host; changes nothing."""
    return look(inventory.host(host, _path(inventory_file)), model)


def stop(host: str, model: str, inventory_file: Path | None = None) -> Status:
    """Stop what serves the model, at boot too. Its slots stay filled. Raises AerieError while a change is at work."""
    named = inventory.host(host, _path(inventory_file))
    if look(named, model).job == "running":
        raise AerieError(
            f"host {host}: {model}",
            seen="a change at work",
            expected="none",
            remedy="Wait for its end: the same ./invoke serve attaches to it.",
        )
    said = SERVICE.ask(named, ["stop", model], timeout_s=300)
    if "error" in said:
        raise AerieError(**said["error"])
    return look(named, model)


def _path(inventory_file: Path | None) -> Path:
    return inventory_file or repository() / "inventory" / "hosts.yml"


def check_arguments(host: Host, services: Sequence[Service]) -> None:
    """Hold services' arguments against the parser of the engine that is installed on the host; changes nothing.

    services: at least one, of the same engine and environment. Raises UsageError with the flag and the version where it
    refuses one, AerieError where the engine cannot be imported.
    """
    documents = json.dumps([one.to_dict() for one in services]).encode()
    said = SERVICE.ask(host, ["arguments"], stdin=documents, timeout_s=arguments.TIMEOUT_S + 60)
    if "error" in said:
        raise AerieError(**said["error"])
    for wanted, problem in zip(services, said["problems"], strict=True):
        if problem is not None:
            raise UsageError(
                f"host {host.name}: launch arguments of {wanted.words}",
                seen=problem,
                expected="arguments that its own parser takes",
                remedy="This version differs from what ./invoke engines has for it. What serves was not touched.",
            )


def fill(prepared: Prepared) -> None:
    """Unit, variables and document of the plan's slot, by the role. Raises AerieError where the play fails."""
    plan, lock = prepared.plan, prepared.lock
    assert plan.wanted is not None and plan.slot is not None, "a plan that is not refused says what it wants, and where"
    limits = {name: getattr(lock.base, name) for name in ("memlock", "nofile", "stack")}
    WATCHDOG.ask(prepared.host, ["version"])  # brings the code there; the unit that the play writes runs it
    service = {
        "slot": plan.slot,
        "document": plan.wanted.to_dict(),
        "words": plan.wanted.words,
        "code": SERVICE.folder,
        "watchdog": {"code": WATCHDOG.folder, "spec": spec_of(plan.wanted, plan.slot).to_dict()},
        "limits": {name: "infinity" if value < 0 else str(value) for name, value in limits.items()},
    }
    given = plays.HostInput(
        host=plan.host,
        layers=("engine",),
        group="aerie_serve",
        group_variables=locks.role_variables(lock),
        variables={"engine_service": service},
    )
    played = plays.play("serve", [given], inventory=prepared.inventory, variables={}, forks=1)
    (ended,) = played.hosts
    if ended.state != "ok":
        raise AerieError(
            f"host {plan.host}: filling slot {plan.slot}",
            seen=ended.error,
            expected="its unit installed",
            remedy=f"What serves was not touched. Ansible's output is in {played.folder}.",
        )


def _follow(host: Host, model: str, began: float, listener: Listener) -> Mapping[str, Any]:
    """The receipt of the change, once it ended."""
    last = time.monotonic()
    with remote.Session(host) as session:
        while True:
            try:
                said = SERVICE.ask(host, ["poll", job_folder(model)], runner=session.run)
                last = time.monotonic()
            except remote.Unreachable:
                if time.monotonic() - last > GONE_S:
                    raise
                time.sleep(POLL_S)
                continue
            if said["job"] != "running":
                break
            listener((said["progress"] or {}).get("phase", "beginning"), time.monotonic() - began)
            time.sleep(POLL_S)
    outcome = said["outcome"]
    if outcome is None or "error" in outcome:
        if outcome:
            raise AerieError(**outcome["error"])
        raise AerieError(
            f"host {host.name}: changing what serves {model}",
            seen="\n".join(said["log"]) or "it ended without a word",
            expected="a receipt",
            remedy=f"See there: systemctl status {unit_of(model, 'blue')} {unit_of(model, 'green')}.",
        )
    found: Mapping[str, Any] = outcome
    return found
