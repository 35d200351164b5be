"""One target served on several hosts, seen from the first: every server is tried, and the engine's router is in front.

Servers of other hosts listen on the address from which their host reaches this one. The router listens here alone.
"""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aerie.eagle3 import serving_agent, together
from aerie.eagle3.heard import SILENCE_S, Heard
from aerie.eagle3.together import Parts, Together
from aerie.engines import router
from aerie.engines.adapter import Launch
from aerie.engines.client import Asked, connect
from aerie.engines.server import Server, free_port, serve
from aerie.engines.states import awaited
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json, write_atomic

__all__ = ["PATIENCE_S", "Fleet", "Wanted", "check_router", "served"]

THIS = "this host"
PATIENCE_S = 90.0  # until what another host wrote is seen here: a network file system may keep a minute of silence
_BEGIN_S = 180.0  # of an agent, which imports from a network file system
_LOOK_S = 0.5
_METRICS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be served, by the same launch on each host. captured: where all of them write states.

    gpus: of each host; needed: what every host must have at the same path; port, ready_timeout_s: as in engine.
    """

    launch: Launch
    python: Path
    captured: Path
    gpus: int
    needed: Sequence[Path]
    port: int
    ready_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """A server of another host."""

    name: str
    url: str
    start_s: float
    launch: Launch

    def failure(self, seen: str) -> AerieError:
        """An error about it."""
        return AerieError(
            f"host {self.name}: its server, {self.url}",
            seen=seen,
            expected="a server that answers",
            remedy="Does a firewall keep this host from that port? Else take the host out of synthesis.hosts.",
        )


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Servers of one target behind a router, all of them tried. own: the server of this host.

    left_out: why hosts do not take part at all, by name. gone: why a host that did no longer does.
    """

    router: Server
    own: Server
    workers: tuple[_Worker, ...]
    parts: Parts
    left_out: Mapping[str, str]
    gone: dict[str, str] = field(default_factory=dict)
    _heard: dict[str, Heard] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Servers, this host's included."""
        return 1 + len(self.workers)

    def look(self) -> dict[str, str]:
        """As gone, now."""
        if THIS not in self.gone and not self.own.is_alive():
            self.gone[THIS] = f"its server ended, says {self.own.log}"
        for worker in self.workers:
            if worker.name not in self.gone and (why := self._why_gone(worker.name)):
                self.gone[worker.name] = why
        return self.gone

    def _why_gone(self, name: str) -> str:
        rank = 1 + self.parts.hosts.index(name)
        if ended := self.parts.ended(rank):
            return _said(ended)
        heard = self._heard.setdefault(name, Heard(self.parts.folder / f"{rank}.alive"))
        return "" if heard.is_alive(SILENCE_S) else f"not heard of for {SILENCE_S:g} s"

    def evidence(self) -> dict[str, Json]:
        """By host what it did: seconds to its first token, tokens that it generated (None where it is gone), and why it
        is gone or was left out.
        """
        self.look()
        here = {THIS: self.own} | {worker.name: worker for worker in self.workers}
        tokens = asyncio.run(_generated({name: one for name, one in here.items() if name not in self.gone}))
        did = {
            name: {"start_s": one.start_s, "generated_tokens": tokens.get(name), "gone": self.gone.get(name)}
            for name, one in here.items()
        }
        return did | {
            name: {"start_s": None, "generated_tokens": None, "gone": why} for name, why in self.left_out.items()
        }


def check_router(engine: str, python: Path, packages: Mapping[str, str]) -> None:
    """Raises AerieError where the engine's environment has no router. packages: what is in it, with versions."""
    name = router.PACKAGES[engine]
    if name not in packages:
        raise AerieError(
            f"environment engine, {python}",
            seen=f"no {name}",
            expected="the engine's own router, which synthesis.hosts asks for",
            remedy=f"Install {name} there, or leave environments.engine.python empty: the locked requirements have it.",
        )


@contextlib.contextmanager
def served(context: Context, others: Together, wanted: Wanted, *, strict: bool) -> Iterator[Fleet]:
    """The target served here and on the other hosts, ready and tried; at its end all servers are.

    strict: raise AerieError for the first host that cannot take part; else it is left out.
    """
    logs = context.out / "logs"
    logs.mkdir(exist_ok=True)
    with together.folder_of(others, context.kept, [*wanted.needed, wanted.captured]) as folder:
        _, failures = together.able(others, folder, wanted.gpus)
        if strict:
            together.refuse(failures)
        left_out = {name: str(failure) for name, failure in failures.items()}
        others = replace(others, hosts=tuple(name for name in others.hosts if name not in failures))
        parts = Parts(folder=folder, hosts=others.hosts)
        write_atomic(folder / "job.json", json.dumps(_job(context, others, wanted)).encode())
        try:
            with together.alive(folder / "alive"):
                _, failures = together.ask("serve", others, folder) if others.hosts else ({}, {})
                starting = _Starting(context, parts, wanted, strict, {n: str(e) for n, e in failures.items()})
                if strict:
                    together.refuse(failures)
                with (
                    serve(
                        {"capture": wanted.launch}, port=wanted.port, logs=logs,
                        ready_timeout_s=wanted.ready_timeout_s, on_wait=starting.on_wait,
                    ) as own,
                ):  # fmt: skip
                    workers = starting.workers()
                    left_out |= starting.failures | _tried(workers, wanted, strict)
                    workers = tuple(worker for worker in workers if worker.name not in left_out)
                    urls = [own["capture"].url, *(worker.url for worker in workers)]
                    front = router.launch(wanted.launch.adapter.name, wanted.python, urls, free_port())
                    with serve(
                        {"router": front}, port=0, logs=logs, ready_timeout_s=_BEGIN_S, on_wait=lambda ready, note: None
                    ) as started:
                        yield Fleet(
                            router=started["router"], own=own["capture"], workers=workers, parts=parts,
                            left_out=left_out,
                        )  # fmt: skip
        finally:
            parts.wait()
            _keep_logs(parts, logs)


class _Starting:
    """The other hosts' servers on their way. failures: why one will not come, by host, unless strict."""

    def __init__(self, context: Context, parts: Parts, wanted: Wanted, strict: bool, failures: dict[str, str]) -> None:
        self._context, self._parts, self._wanted, self._strict = context, parts, wanted, strict
        self._began = time.monotonic()
        self.failures = failures

    def on_wait(self, ready: int, note: str) -> None:
        """While this host's own server starts."""
        count = ready + self._look()
        self._context.progress(count, 1 + len(self._parts.hosts), unit="servers ready", note=note)

    def workers(self) -> tuple[_Worker, ...]:
        """Those that are ready, when no other one is to come."""
        while (there := self._look()) + len(self.failures) < len(self._parts.hosts):
            sizes = [file.stat().st_size for file in sorted(self._parts.folder.glob("*.log"))]
            self._context.progress(
                1 + there, 1 + len(self._parts.hosts), unit="servers ready", note=f"{sum(sizes)} log bytes elsewhere"
            )
            time.sleep(_LOOK_S)
        return tuple(
            _Worker(name=name, url=ready["url"], start_s=ready["start_s"], launch=self._wanted.launch)
            for name, ready in ((name, self._parts.read(rank, "ready")) for rank, name in self._ranks())
            if ready
        )

    def _ranks(self) -> Iterator[tuple[int, str]]:
        for rank, name in enumerate(self._parts.hosts, start=1):
            if name not in self.failures:
                yield rank, name

    def _look(self) -> int:
        """How many are ready."""
        there = 0
        for rank, name in list(self._ranks()):
            if ended := self._parts.ended(rank):
                self._fail(name, _said(ended))
            elif self._parts.read(rank, "ready"):
                there += 1
            elif time.monotonic() - self._began > _BEGIN_S and not (self._parts.folder / f"{rank}.alive").exists():
                self._fail(name, f"nothing heard of it {_BEGIN_S:g} s after it was started")
            elif time.monotonic() - self._began > self._wanted.ready_timeout_s + _BEGIN_S:
                self._fail(name, f"not ready after {self._wanted.ready_timeout_s:g} s")
        return there

    def _fail(self, name: str, why: str) -> None:
        self.failures[name] = why
        if self._strict:
            raise AerieError(
                f"host {name}: its server",
                seen=why,
                expected="a server that answers",
                remedy="Mend what its log says, or take the host out of synthesis.hosts.",
            )


def _job(context: Context, others: Together, wanted: Wanted) -> dict[str, Json]:
    return {
        "address": others.address,
        "launch": serving_agent.told(wanted.launch),
        "ready_timeout_s": wanted.ready_timeout_s,
        "locks": [
            hashlib.sha256(f"{context.kept}\0{name}".encode()).hexdigest()[:16] for name in others.hosts
        ],  # the same for all attempts at this work
    }


def _said(ended: Json) -> str:
    return "\n".join(ended["tail"]) or f"ended with exit status {ended['exit_status']}"


def _tried(workers: Sequence[_Worker], wanted: Wanted, strict: bool) -> dict[str, str]:
    """One short answer with its states of each server itself, so that a host is told by name. Why not, by host."""
    failures = {}
    for worker in workers:
        try:
            asyncio.run(_try(worker, wanted))
        except AerieError as error:
            if strict:
                raise
            failures[worker.name] = str(error)
    return failures


async def _try(worker: _Worker, wanted: Wanted) -> None:
    prompt = [1, *[3] * 31]
    async with connect(worker) as client:
        answer = await client.ask(wanted.launch.adapter.question(prompt, max_tokens=2, ignore_eos=True, states=True))
    if answer.states_file is None:
        raise worker.failure("an answer without its file of hidden states")
    written = wanted.captured / answer.states_file
    try:
        states = await asyncio.to_thread(awaited, written, PATIENCE_S)
    except AerieError as error:
        raise AerieError(
            f"host {worker.name}: the states that it wrote",
            seen=str(error),
            expected=f"the file on this host, under {wanted.captured}",
            remedy="Keep the state of runs where all hosts see it, with locks of files: XDG_STATE_HOME on a shared "
            "file system.",
        ) from error
    written.unlink()
    if states.token_ids[: len(prompt)] != tuple(prompt):
        raise worker.failure(f"states of other tokens, {states.token_ids[:8]} …")


async def _generated(servers: Mapping[str, Asked]) -> dict[str, int]:
    """Tokens that each server generated since its start; those that do not say are left out."""

    async def of(name: str, server: Asked) -> tuple[str, int] | None:
        try:
            async with connect(server, _METRICS_S) as client:
                return name, server.launch.adapter.progress(await client.metrics()).generated_tokens
        except AerieError:
            return None

    said = await asyncio.gather(*(of(name, server) for name, server in servers.items()))
    return dict(one for one in said if one)


def _keep_logs(parts: Parts, logs: Path) -> None:
    for rank, name in enumerate(parts.hosts, start=1):
        with contextlib.suppress(FileNotFoundError):
            (logs / f"capture.{name}.log").write_bytes((parts.folder / f"{rank}.log").read_bytes())
