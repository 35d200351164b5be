"""Fetches what is missing and verifies it while the rest still comes: one staging's loop.

A file goes part → hashed → renamed → stamped, and is called verified only then. A part may come in pieces from several
peers that are themselves in the middle of it. Whatever fails is tried again, elsewhere first; what cannot succeed any
more is an error of that file, and the others still come.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError
from aerie.weights.manifest import File
from aerie.weights.onhost import backends, peers, schedule
from aerie.weights.onhost.backends import Fault
from aerie.weights.onhost.ledger import Active, Ledger
from aerie.weights.onhost.spec import Spec
from aerie.weights.onhost.survey import State, Survey
from aerie.weights.onhost.target import Stamp, Target, write_parts, write_stamps
from aerie.weights.onhost.transfer import Outcome, Settings, host_error, make_empty, size_of, transfer
from aerie.weights.onhost.verify import Hashed, Verifier
from aerie.weights.onhost.wanted import Place, Wanted, places

__all__ = ["Fetch"]

TICK_S: Final = 0.2
TELL_S: Final = 1.0  # between two looks at what the parts have for the peers
FAILURES_BEFORE_SWITCH: Final = 2  # with one backend, before the next one is tried


class Fetch:
    """One staging's transfers and hashing processes. lock: the target's, inherited by them."""

    def __init__(self, spec: Spec, survey: Survey, stamps: dict[str, Stamp], lock: int, ledger: Ledger) -> None:
        self._spec, self._ledger, self._stamps = spec, ledger, stamps
        self._target = Target(spec.target)
        self._manifest_sha256 = spec.manifest_sha256
        self._sizes = {file.path: file.size for file in spec.manifest.files}
        self._verifier = Verifier(lock)
        self._settings = Settings(stall_s=spec.stall_s, hub_python=spec.hub_python, lock=lock)
        self._backends = backends.available(spec.backends, spec.hub_python)
        self._places = places(spec)
        self._waiting = {one.file.path: Wanted(file=one.file) for one in survey.to_fetch}
        self._present = [one.file for one in survey.of(State.UNVERIFIED)]
        self._errors: list[AerieError] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers_due_at = 0.0
        self._are_peers_known = False
        self._asking: asyncio.Task[None] | None = None
        self._alive_at = time.monotonic()  # when something last came, or changed at a peer
        self._recording = asyncio.Lock()

    async def run(self) -> None:
        """Until every file is verified. Raises AerieError; parts keep what has arrived, whatever happens."""
        for file in self._present:
            self._start(self._verify_present(file))
        telling = asyncio.create_task(self._tell_peers())
        try:
            while self._waiting or self._tasks:
                self._begin()
                self._give_up()
                if not self._tasks:
                    await asyncio.sleep(TICK_S)
                    continue
                done, self._tasks = await asyncio.wait(
                    self._tasks, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED
                )  # fmt: skip
                for task in done:
                    task.result()  # raises what no source mends, and our own bugs
        finally:
            left = [*self._tasks, telling, *([self._asking] if self._asking else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self._errors:
            first = self._errors[0]
            first.parts = tuple(self._errors)
            raise first

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

    def _begin(self) -> None:
        """Start every transfer that can be started now, and the question to the peers when it is due."""
        now = time.monotonic()
        if self._waiting and self._spec.peers and now >= self._peers_due_at:
            self._peers_due_at = float("inf")
            # Not among the tasks: a peer that does not answer must not keep a staging that is done.
            self._asking = asyncio.create_task(self._ask_peers())
        if self._spec.peers and not self._are_peers_known:
            return  # else the first transfers would all fall to the origin
        own = {path: size_of(self._target.part(path)) for path in self._waiting}
        strict = {path for path, wanted in self._waiting.items() if wanted.mismatches}
        while self._waiting and sum(place.active for place in self._places) < self._spec.parallel:
            ready = {path for path, wanted in self._waiting.items() if wanted.not_before <= now}
            open_now = (place for place in self._places if place.blocked_until <= now)
            offers = [place.offers(self._sizes, own, strict) for place in open_now]
            choice = schedule.choose(
                tuple(self._sizes), ready, [one for one in offers if one is not None],
                position=self._spec.position, hosts=1 + len(self._spec.peers),
                may_use_origin=self._spec.may_use_origin,
                is_quiet=now - self._alive_at >= min(schedule.PATIENCE_S, self._spec.idle_s / 2),
            )  # fmt: skip
            if choice is None:
                return
            place = next(place for place in self._places if place.name == choice.source)
            place.active += 1
            self._start(self._obtain(self._waiting.pop(choice.path), place))

    async def _ask_peers(self) -> None:
        manifest, sha256 = self._spec.manifest, self._manifest_sha256
        own = [place for place in self._places if not place.is_origin]
        answers = await asyncio.gather(
            *(asyncio.to_thread(peers.ask, place.url, manifest, sha256) for place in own)
        )  # fmt: skip
        for place, told in zip(own, answers, strict=True):
            if (place.have, place.parts) != told:
                (place.have, place.parts), self._alive_at = told, time.monotonic()
        self._are_peers_known = True
        self._peers_due_at = time.monotonic() + peers.INTERVAL_S

    async def _tell_peers(self) -> None:
        """Keep the peers told of what is here of each file, until cancelled; what they are told is gone at the end."""
        told: dict[str, int] = {}
        try:
            while self._spec.peers:
                sizes = {path: size_of(self._target.part(path)) for path in self._sizes if path not in self._stamps}
                parts = {path: size for path, size in sizes.items() if size > 0}
                with suppress(OSError):  # a full disk is for the transfers to say
                    if parts != told:
                        write_parts(self._target, self._manifest_sha256, parts)
                        told = parts
                await asyncio.sleep(TELL_S)
        finally:
            with suppress(OSError):
                write_parts(self._target, self._manifest_sha256, None)

    async def _obtain(self, wanted: Wanted, place: Place) -> None:
        """Fetch what one place has of a file and verify it when it is whole; what is not, or failed, waits again."""
        try:
            outcome = await self._transfer(wanted, place)
        finally:
            place.active -= 1
        if outcome.fault is not None:
            self._failed(wanted, place, outcome)
            return
        place.failures = 0
        part = self._target.part(wanted.file.path)
        if size_of(part) < wanted.file.size:
            wanted.tries = 0
            self._waiting[wanted.file.path] = wanted
            return
        hashed = await self._hash(wanted.file, part, place.name, wanted.attempt)
        if hashed.stamp is None:
            part.unlink()
            self._mismatched(wanted, hashed.found)
        elif not await self._finish(wanted.file, part, hashed.stamp):
            self._retry(wanted, "it was written to after it was hashed", part)

    async def _transfer(self, wanted: Wanted, place: Place) -> Outcome:
        file, part = wanted.file, self._target.part(wanted.file.path)
        if file.size == 0:
            make_empty(part)
            return Outcome()
        before = size_of(part)
        if before > file.size:
            part.unlink()
            before = 0
        wanted.came(place.name, before, before)
        if before == file.size:  # whole since an earlier staging: to be verified, as everything
            return Outcome()
        wanted.most = max(wanted.most, before)
        backend = self._backend(wanted, place)
        is_whole = place.have is None or file.path in place.have
        self._ledger.event(
            "fetch", path=file.path, source=place.name, backend=backend, have=before, of="file" if is_whole else "part"
        )  # fmt: skip
        active = Active(path=file.path, size=file.size, source=place.name, attempt=wanted.attempt, bytes=before)
        with self._ledger.moving(active):
            outcome = await transfer(file, part, place, backend, self._settings, active)
        wanted.came(place.name, before, size_of(part))
        self._ledger.arrived(place.name, size_of(part) - before)
        return outcome

    def _backend(self, wanted: Wanted, place: Place) -> str:
        if not place.is_origin:
            return "piece"
        if place.kind not in ("hub", "http"):
            return place.kind
        usable = [name for name in self._backends if name == "aria2" or place.kind == "hub"]
        return usable[wanted.tries // FAILURES_BEFORE_SWITCH % len(usable)]

    async def _hash(self, file: File, path: Path, source: str, attempt: int = 1) -> Hashed:
        active = Active(
            path=file.path, size=file.size, source=source, attempt=attempt, bytes=file.size, stage="verifying"
        )  # fmt: skip
        with self._ledger.moving(active):
            return await self._verifier.hash(file, path)

    async def _verify_present(self, file: File) -> None:
        """Stamp a file that lay there, or throw it away and fetch it."""
        path = self._target.file(file.path)
        hashed = await self._hash(file, path, "")
        if hashed.stamp is None:
            self._ledger.event("wrong", path=file.path, source="this host", found=hashed.found, expected=file.hash)
            path.unlink()
            self._ledger.bytes.pop(file.path, None)
            self._waiting[file.path] = Wanted(file=file)
        else:
            await self._stamp(file, hashed.stamp)

    async def _finish(self, file: File, part: Path, stamp: Stamp) -> bool:
        """Put the verified part in its place; False when it is no longer what was hashed."""
        if not stamp.holds(file, os.stat(part)):
            return False
        path = self._target.file(file.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.rename(part, path)
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                await asyncio.to_thread(os.fsync, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise host_error(path, error.strerror or str(error)) from error
        await self._stamp(file, stamp)
        return True

    async def _stamp(self, file: File, stamp: Stamp) -> None:
        async with self._recording:
            self._stamps[file.path] = stamp
            try:
                await asyncio.to_thread(write_stamps, self._target, self._manifest_sha256, dict(self._stamps))
            except OSError as error:
                raise host_error(self._target.own / "verified.json", error.strerror or str(error)) from error
        self._alive_at = time.monotonic()
        self._ledger.verified[file.path] = self._ledger.bytes[file.path] = file.size
        self._ledger.event("verified", path=file.path)

    def _failed(self, wanted: Wanted, place: Place, outcome: Outcome) -> None:
        path, now = wanted.file.path, time.monotonic()
        part = self._target.part(path)
        self._ledger.event("failed", path=path, source=place.name, reason=outcome.reason, fault=outcome.fault)
        if outcome.wait_s is not None:
            # The source rules its own pace: a pause that it asks for is no failure of the file.
            place.blocked_until = max(place.blocked_until, now + outcome.wait_s)
            self._waiting[path] = wanted
            self._ledger.retries += 1
            return
        if place.refuse(path, outcome.status, outcome.reason):
            wanted.last = outcome.reason
            self._waiting[path] = wanted
            return
        if outcome.fault is Fault.LESS:
            place.parts = {other: size for other, size in place.parts.items() if other != path}  # till it is asked
        else:
            place.failures += 1
        if outcome.fault is Fault.NO_RESUME and path not in place.avoid:
            place.avoid.add(path)  # one that can continue is asked first; the second time here, it starts anew
        elif outcome.fault in (Fault.NO_RESUME, Fault.RESTART):
            part.unlink(missing_ok=True)
        self._retry(wanted, f"{place.name}: {outcome.reason}", part)

    def _mismatched(self, wanted: Wanted, found: str) -> None:
        file, givers = wanted.file, {name for name, _ in wanted.givers}
        self._ledger.event("wrong", path=file.path, source=wanted.given_by, found=found, expected=file.hash)
        self._ledger.bytes.pop(file.path, None)
        reason = f"{wanted.given_by}: {file.hash_kind} {found}"
        wanted.mismatched(found)
        for place in self._places:
            if place.name in givers:
                place.avoid.add(file.path)
                place.failures += len(givers) == 1  # of several nobody knows which one it was
        self._retry(wanted, reason, self._target.part(file.path))

    def _retry(self, wanted: Wanted, reason: str, part: Path) -> None:
        self._ledger.retries += 1
        wanted.attempt += 1
        self._ledger.message = f"{wanted.file.path}: {reason}"
        wanted.failed(reason, size_of(part), time.monotonic(), self._spec.backoff_s)
        if (error := wanted.error(str(self._target.path), self._spec.tries)) is None:
            self._waiting[wanted.file.path] = wanted
        else:
            self._errors.append(error)

    def _give_up(self) -> None:
        """Drop the files that no source offers; a host that is to have them from its peers waits idle_s for those."""
        now = time.monotonic()
        if any(place.blocked_until > now or place.active for place in self._places):
            self._alive_at = now
        may_wait = not self._spec.may_use_origin and now - self._alive_at < self._spec.idle_s
        if self._spec.peers and not self._are_peers_known:
            return
        for path, wanted in list(self._waiting.items()):
            if may_wait or any(place.could_give(path, self._spec.may_use_origin) for place in self._places):
                continue
            del self._waiting[path]
            self._errors.append(wanted.unobtainable(str(self._target.path), self._places))
