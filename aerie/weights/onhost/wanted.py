"""What is known of each file that is still to be had, and of each source: pure bookkeeping of failures."""

import random
from dataclasses import dataclass, field
from typing import Final

from aerie.errors import AerieError
from aerie.weights.manifest import File
from aerie.weights.onhost import schedule
from aerie.weights.onhost.spec import Spec

__all__ = ["MISMATCHES", "Place", "Wanted", "pause_s", "places"]

MISMATCHES: Final = 3  # the third wrong hash of one file ends the staging
PAUSE_LIMIT_S: Final = 60.0
_FOR_GOOD: Final = (401, 403, 404, 409, 410, 451)  # an origin's answers that asking again does not change


@dataclass(slots=True)
class Place:
    """A source as this staging sees it. have: paths that a peer has verified, None for an origin: all."""

    name: str
    kind: str
    url: str
    is_origin: bool
    token_file: str = ""
    have: frozenset[str] | None = None
    active: int = 0
    failures: int = 0
    blocked_until: float = 0.0  # monotonic
    refused: dict[str, str] = field(default_factory=dict)  # why not, by path
    avoid: set[str] = field(default_factory=set)

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

    def offers(self, paths: set[str]) -> schedule.Source | None:
        """What the schedule may choose from here among all `paths`, None for nothing."""
        have = self.have
        if self.refused:
            have = frozenset((paths if have is None else have) - self.refused.keys())
        if have is not None and not have:
            return None
        return schedule.Source(
            name=self.name, is_origin=self.is_origin, have=have, active=self.active,
            failures=self.failures, avoid=frozenset(self.avoid),
        )  # fmt: skip


@dataclass(slots=True)
class Wanted:
    """One file to be had. tries: failures in a row without a new byte; most: the largest part seen so far."""

    file: File
    attempt: int = 0
    tries: int = 0
    most: int = 0
    not_before: float = 0.0  # monotonic
    last: str = ""
    mismatches: list[tuple[str, str]] = field(default_factory=list)  # source, hash

    def failed(self, reason: str, have: int, now: float, backoff_s: float) -> None:
        """Note a failure with a part of `have` bytes; a part that grew starts the count again."""
        self.tries = 1 if have > self.most else self.tries + 1
        self.most = max(self.most, have)
        self.last = reason
        self.not_before = now + pause_s(self.tries, backoff_s, random.random())

    def mismatched(self, source: str, found: str) -> None:
        """Note a wrong hash; what was there is gone."""
        self.mismatches.append((source, found))
        self.most = 0

    def error(self, target: str, tries: int) -> AerieError | None:
        """Why this file is given up, None while it is not."""
        if len(self.mismatches) >= MISMATCHES:
            seen = ", ".join(f"{found} from {source}" for source, found in self.mismatches)
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
