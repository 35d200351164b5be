"""One host's part of a staging: its job started or found, followed to its end, promoted or stopped when told."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Event, Thread
from typing import Any

from aerie import remote
from aerie.errors import AerieError
from aerie.inventory import Host

from . import shipping
from .staging import Problem

__all__ = ["Active", "Follower", "HostResult", "Progress", "State"]

POLL_S = 1.0
RETRY_S = 5.0
CONTACT_S = 120.0  # a job goes on without its controller; after so long the host is told as lost to us


class State(StrEnum):
    """Of one host."""

    WAITING = "waiting"
    FETCHING = "fetching"
    VERIFYING = "verifying"
    WARMING = "warming"
    NO_CONTACT = "no-contact"  # for now; its job goes on
    DONE = "done"
    UNCHANGED = "unchanged"  # it had everything already
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"  # asked for; what has arrived is kept

    @property
    def is_end(self) -> bool:
        """Nothing more comes."""
        return self in (State.DONE, State.UNCHANGED, State.FAILED, State.UNREACHABLE, State.STOPPED)


OF_JOB = {
    "preflight": State.WAITING,
    "fetching": State.FETCHING,
    "verifying": State.VERIFYING,
    "warming": State.WARMING,
    "done": State.WARMING,  # until its outcome is written
    "failed": State.WAITING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """A file that moves."""

    path: str
    bytes: int
    size_bytes: int
    source: str
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a host is. moved_at: time.monotonic() when its bytes last changed; note: what is special about it."""

    host: str
    state: State
    bytes_total: int
    bytes_on_disk: int = 0
    bytes_verified: int = 0
    bytes_resident: int | None = None
    files: int = 0
    files_verified: int = 0
    rate_bytes_s: float = 0.0
    eta_s: float | None = None
    active: tuple[Active, ...] = ()
    retries: int = 0
    moved_at: float = 0.0
    note: str = ""

    def after(self, told: Mapping[str, Any]) -> "Progress":
        """With what the job's progress.json says."""
        moved = (told["bytes"]["on_disk"], told["bytes"]["verified"], told["bytes"]["resident"])
        is_same = moved == (self.bytes_on_disk, self.bytes_verified, self.bytes_resident)
        return replace(
            self,
            state=OF_JOB[told["state"]],
            bytes_on_disk=moved[0],
            bytes_verified=moved[1],
            bytes_resident=moved[2],
            files=told["files"]["total"],
            files_verified=told["files"]["verified"],
            rate_bytes_s=told["rate_bytes_s"],
            eta_s=told["eta_s"],
            active=tuple(
                Active(
                    path=one["path"],
                    bytes=one["bytes"],
                    size_bytes=one["size"],
                    source=one["source"],
                    stage=one["stage"],
                )
                for one in told["active"]
            ),
            retries=told["retries"],
            moved_at=self.moved_at if is_same and self.moved_at else time.monotonic(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """How it ended on a host. by_source: bytes fetched from each; warm: what became of the page cache, and why."""

    host: str
    state: State
    error: str = ""
    was_attached: bool = False
    seconds: float = 0.0
    retries: int = 0
    by_source: Mapping[str, int] = field(default_factory=dict)
    warm: str = ""
    why_not_warm: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As `stage --json` has it."""
        return {
            "host": self.host,
            "state": str(self.state),
            "error": self.error,
            "attached": self.was_attached,
            "seconds": self.seconds,
            "retries": self.retries,
            "bytes_by_source": dict(self.by_source),
            "warm": self.warm,
            "why_not_warm": self.why_not_warm,
        }


class Follower:
    """A thread that stages one host. progress is replaced, never changed, so that others may read it at any time."""

    def __init__(self, host: Host, folder: str, spec: bytes, progress: Progress) -> None:
        self.host, self.progress = host, progress
        self.result: HostResult | None = None
        self.may_use_origin = False
        self._folder, self._spec = folder, spec
        self._next_spec: bytes | None = None
        self._stop = Event()
        self._was_attached = False
        self._thread = Thread(target=self._run, name=f"stage {host.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def promote(self, spec: bytes) -> None:
        """Let the host go on with this specification, which may use the source: the one that could is gone."""
        self.may_use_origin = True
        self._next_spec = spec

    def stop(self) -> None:
        """End the job in order; what has arrived is kept."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with remote.Session(self.host) as session:
                self.result = self._follow(session)
        except remote.Unreachable as error:
            self.result = self._ended(State.UNREACHABLE, error=str(error))
        except AerieError as error:
            self.result = self._ended(State.FAILED, error=str(error))
        except Exception as error:  # a bug of ours must not leave the others waiting for this host
            self.result = self._ended(State.FAILED, error=f"{type(error).__name__}: {error}")
        self.progress = replace(self.progress, state=self.result.state, active=(), rate_bytes_s=0.0)

    def _follow(self, session: remote.Session) -> HostResult:
        self._was_attached = not self._ask(session, "start", self._spec)["is_new"]
        while True:
            if self._stop.is_set():
                self._ask(session, "stop")
                return self._ended(State.STOPPED, error="stopped; what has arrived is kept, the same command goes on")
            if self._next_spec is not None:
                spec, self._next_spec = self._next_spec, None
                self._ask(session, "stop")
                self._ask(session, "start", spec)
            told = self._patiently(lambda: self._ask(session, "poll"))
            if told["progress"]:
                self.progress = self.progress.after(told["progress"])
            if told["job"] != "running":
                return self._judge(told)
            self._stop.wait(POLL_S)

    def _patiently(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The answer, also of a host that cannot be reached for a while. Raises Unreachable after CONTACT_S."""
        lost_at = time.monotonic()
        while True:
            try:
                return ask()
            except remote.Unreachable as error:
                self.progress = replace(self.progress, state=State.NO_CONTACT, active=(), note=str(error))
                if time.monotonic() - lost_at > CONTACT_S or self._stop.is_set():
                    raise LostContact(self.host, error) from error
                self._stop.wait(RETRY_S)

    def _ask(self, session: remote.Session, verb: str, stdin: bytes = b"") -> dict[str, Any]:
        return shipping.ask(self.host, [verb, self._folder], stdin=stdin, runner=session.run)

    def _judge(self, told: Mapping[str, Any]) -> HostResult:
        outcome = told["outcome"]
        if outcome is None:
            how = (told["result"] or {}).get("outcome", "lost")
            said = "\n".join(told["log"]) or "nothing in its log"
            return self._ended(State.FAILED, error=f"its job ended without an outcome ({how}): {said}")
        problems = [Problem(**one) for one in outcome["errors"]]
        warm = outcome["warm"] or {}
        return self._ended(
            State.DONE if outcome["state"] == "done" else State.FAILED,
            error="\n".join(map(str, problems)),
            seconds=outcome["seconds"],
            retries=outcome["retries"],
            by_source=outcome["bytes"]["by_source"],
            warm=warm.get("state", ""),
            why_not_warm=warm.get("reason") or "",
        )

    def _ended(self, state: State, **more: Any) -> HostResult:
        return HostResult(host=self.host.name, state=state, was_attached=self._was_attached, **more)


class LostContact(remote.Unreachable):
    """The host was not reached for long while its job was at work."""

    def __init__(self, host: Host, error: remote.Unreachable) -> None:
        super().__init__(
            host,
            error.cause,
            seen=error.seen,
            expected="contact",
            remedy="The job there goes on by itself; the same command attaches to it.",
        )
