"""What is known of each file that is still to be had, and of each source: pure bookkeeping of failures."""

import random
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from aerie.errors import AerieError
from aerie.weights.manifest import File
from aerie.weights.onhost import address, schedule
from aerie.weights.onhost.spec import Spec

__all__ = ["MISMATCHES", "Place", "Wanted", "pause_s", "places"]

STEP_BYTES: Final = 64 << 20  # a smaller step costs more in processes than it gains in time
EARLIER: Final = "an earlier staging"
MISMATCHES: Final = 3  # the third wrong hash of one file ends the staging
PAUSE_LIMIT_S: Final = 60.0
_FOR_GOOD: Final = (401, 403, 404, 409, 410, 451)  # an origin's answers that asking again does not change


@dataclass(slots=True)
class Place:
    """A source as this staging sees it. have: paths that a peer has verified, None for an origin: all.

    parts: how many bytes a peer has of each file that it has not verified yet; a beginning, and only its word for it.
    """

    name: str
    kind: str
    url: str
    is_origin: bool
    token_file: str = ""
    have: frozenset[str] | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    active: int = 0
    failures: int = 0
    blocked_until: float = 0.0  # monotonic
    refused: dict[str, str] = field(default_factory=dict)  # why not, by path
    avoid: set[str] = field(default_factory=set)

    def addresses(self, path: str) -> tuple[str, ...]:
        """Where a peer's bytes of a file may lie: in its part until that is verified, then in the file."""
        whole = address.file_url(self.url, path)
        if self.have is None or path in self.have:
            return (whole,)
        return address.file_url(self.url, f".aerie/parts/{path}.part"), whole

    def refuse(self, path: str, status: int, reason: str) -> bool:
        """Note a refusal; whether it is for good. A peer may have tomorrow what it lacks today."""
        is_final = self.is_origin and status in _FOR_GOOD
        if is_final:
            self.refused[path] = reason
        return is_final

    def could_give(self, path: str, may_use_origin: bool) -> bool:
        """The file can be had here, now or after a pause."""
        if self.is_origin:
            return may_use_origin and path not in self.refused
        return self.have is not None and path in self.have

    def offers(
        self, sizes: Mapping[str, int], own: Mapping[str, int], only_verified: Set[str] = frozenset()
    ) -> schedule.Source | None:
        """What the schedule may choose from here, None for nothing: what is verified here, and beginnings of files.

        sizes: bytes of every file; own: of those that this host has a part of. A beginning is worth asking for where it
        is STEP_BYTES longer than this host's own, or whole. only_verified: files of which none is taken.
        """
        have = frozenset(sizes) if self.have is None else self.have
        have -= self.refused.keys()
        ahead = {path for path, there in self.parts.items() if _is_worth(there, own.get(path, 0), sizes[path])}
        ahead -= self.avoid | only_verified
        if not have and not ahead:
            return None
        return schedule.Source(
            name=self.name, is_origin=self.is_origin, have=have | ahead, active=self.active, failures=self.failures,
            avoid=frozenset(self.avoid), size=sum(map(sizes.__getitem__, have)) + sum(self.parts.values()),
        )  # fmt: skip


def _is_worth(there: int, here: int, whole: int) -> bool:
    return there - here >= STEP_BYTES or (there == whole and there > here)


@dataclass(slots=True)
class Wanted:
    """One file to be had. tries: failures in a row without a new byte; most: the largest part seen so far.

    givers: who gave the part's bytes, in order: a name, and where its bytes end.
    """

    file: File
    attempt: int = 1
    tries: int = 0
    most: int = 0
    not_before: float = 0.0  # monotonic
    last: str = ""
    givers: list[tuple[str, int]] = field(default_factory=list)
    mismatches: list[tuple[str, str]] = field(default_factory=list)  # givers, hash

    def came(self, source: str, before: int, have: int) -> None:
        """Note that a source brought the part from `before` to `have` bytes."""
        if before == 0:
            self.givers.clear()
        elif not self.givers:
            self.givers.append((EARLIER, before))
        if have > before:
            if self.givers and self.givers[-1][0] == source:
                self.givers.pop()
            self.givers.append((source, have))

    @property
    def given_by(self) -> str:
        """The givers in words: a name, or several with what each gave."""
        if len(self.givers) < 2:
            return self.givers[0][0] if self.givers else EARLIER
        starts = [0, *(end for _, end in self.givers)]
        words = (f"{name} (bytes {start} to {end})" for start, (name, end) in zip(starts, self.givers, strict=False))
        return ", ".join(words)

    def failed(self, reason: str, have: int, now: float, backoff_s: float) -> None:
        """Note a failure with a part of `have` bytes; a part that grew starts the count again."""
        self.tries = 1 if have > self.most else self.tries + 1
        self.most = max(self.most, have)
        self.last = reason
        self.not_before = now + pause_s(self.tries, backoff_s, random.random())

    def mismatched(self, found: str) -> None:
        """Note a wrong hash; what was there is gone, and from now on only verified files are taken for it."""
        self.mismatches.append((self.given_by, found))
        self.givers.clear()
        self.most = 0

    def error(self, target: str, tries: int) -> AerieError | None:
        """Why this file is given up, None while it is not."""
        if len(self.mismatches) >= MISMATCHES:
            seen = "; ".join(f"{found} from {givers}" for givers, found in self.mismatches)
            return self._error(
                target, f"{self.file.hash_kind} {seen}", f"{self.file.hash_kind} {self.file.hash}",
                "Compare the file at its source with the manifest; ./invoke weights.manifest makes one anew.",
            )  # fmt: skip
        if self.tries >= tries:
            return self._error(
                target, f"{self.tries} failures in a row, the last: {self.last}", "a source that gives it",
                "Look at the source and the network, then stage again: what has arrived is kept.",
            )  # fmt: skip
        return None

    def unobtainable(self, target: str, places: list[Place]) -> AerieError:
        """The error of a file that no source offers."""
        path = self.file.path
        reasons = [f"{place.name}: {place.refused[path]}" for place in places if path in place.refused]
        return self._error(
            target, "; ".join(reasons) or self.last or "on no source", "a source that gives it",
            "Check the token and the source's address, revision and licence gate, or stage from a host that has it.",
        )  # fmt: skip

    def _error(self, target: str, seen: str, expected: str, remedy: str) -> AerieError:
        return AerieError(f"{target}: {self.file.path}", seen=seen, expected=expected, remedy=remedy)


def places(spec: Spec) -> list[Place]:
    """The origins, then the peers. Origins are named by their kind, from the second of a kind on with a number."""
    found: list[Place] = []
    kinds: list[str] = []
    for one in spec.sources:
        kinds.append(one.kind)
        number = kinds.count(one.kind)
        name = one.kind if number == 1 else f"{one.kind}-{number}"
        found.append(Place(name=name, kind=one.kind, url=one.url, is_origin=True, token_file=one.token_file))
    return found + [
        Place(name=peer.name, kind="http", url=peer.url, is_origin=False, have=frozenset()) for peer in spec.peers
    ]


def pause_s(failures: int, backoff_s: float, jitter: float) -> float:
    """Seconds before the next try: doubled with each failure, spread by jitter (0 to 1) so that hosts part."""
    return float(min(PAUSE_LIMIT_S, backoff_s * 2 ** min(failures - 1, 10)) * (0.5 + 0.5 * jitter))
