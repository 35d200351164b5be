"""Which file a host fetches next, and from whom: the rule that makes a tree of hosts out of one seeder.

The seeder's link carries every file about once: the hosts share the files among themselves, each takes its share from
the seeder and everything else from whoever has it, or is further in the middle of it. Nobody coordinates: each host
decides from what it sees.
Standard library only, for this runs on the hosts.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

__all__ = ["LIMIT_PER_PEER", "PATIENCE_S", "Choice", "Source", "choose"]

LIMIT_PER_PEER = 1  # transfers at once from one peer: a second would only finish later, and others wait for the file
PATIENCE_S = 30.0  # without a move anywhere: the owner of a file that nobody fetches is taken for dead then


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that files come from, as a host sees it now."""

    name: str
    is_origin: bool = False
    have: frozenset[str] | None = None  # verified there, or further than here; None: every file (an origin)
    size: int = 0  # bytes that it has of the model
    active: int = 0  # this host's transfers from it at the moment
    failures: int = 0  # in a row; the fewer, the sooner it is asked again
    avoid: frozenset[str] = frozenset()  # came from here broken: only when nobody else has it

    def among(self, paths: Collection[str]) -> frozenset[str]:
        """Those of the paths that can be had from here."""
        return frozenset(paths) if self.have is None else self.have.intersection(paths)


class Choice(NamedTuple):
    """What to fetch, and the name of the source to fetch it from."""

    path: str
    source: str


def choose(
    paths: Sequence[str],
    missing: Collection[str],
    sources: Sequence[Source],
    *,
    position: int,
    hosts: int,
    may_use_origin: bool,
    is_quiet: bool = False,
) -> Choice | None:
    """The next transfer that this host should begin, or None when it should wait for one to end or a peer to go on.

    paths: all files of the manifest in its order; missing: those neither verified here nor under way.
    position: this host's number among `hosts`; 0 is the seeder. An origin has no limit but the caller's own. Of several
    origins the first that does not fail is taken. A host alone has position 0, hosts 1 and no peers. Call again after
    every change, until it gives None.
    is_quiet: nothing has moved here or at the peers for PATIENCE_S; what others should have fetched is fetched then.
    """
    peers = [source for source in sources if not source.is_origin]
    sound = [source for source in peers if not source.failures]
    holders = Counter(chain.from_iterable(source.among(paths) - source.avoid for source in sound))
    indexes = {path: index for index, path in enumerate(paths)}
    view = _View(paths, peers, holders, position, hosts, is_quiet)
    best: tuple[tuple[int | bool, ...], Choice] | None = None
    for rank, source in enumerate(sources):
        if not may_use_origin if source.is_origin else source.active >= LIMIT_PER_PEER:
            continue
        for path in source.among(missing):
            index = indexes[path]
            if not source.is_origin and not view.may_take(index, source):
                continue
            key = (
                path in source.avoid, source.failures, source.is_origin, rank if source.is_origin else 0,
                holders[path] > 1, view.distance(index), index, source.active, (rank - position) % len(sources),
            )  # fmt: skip
            if best is None or key < best[0]:
                best = key, Choice(path, source.name)
    return best[1] if best else None


class _View:
    """What a host knows of the others. Where one peer alone has more of a file, only its owner takes it there."""

    def __init__(
        self, paths: Sequence[str], peers: Sequence[Source], holders: Counter[str], position: int, hosts: int,
        is_quiet: bool,
    ) -> None:  # fmt: skip
        self.paths, self.holders, self.position, self.is_quiet = paths, holders, position, is_quiet
        self.failed = frozenset(path for source in peers for path in source.avoid)
        self.receivers = max(1, hosts - 1)
        self.scarce = sum(holders[path] == 1 for path in paths)
        largest = max((source.size for source in peers), default=0)
        fullest = [source for source in peers if source.size == largest]
        self.seeder = fullest[0] if len(fullest) == 1 else None

    def may_take(self, index: int, source: Source) -> bool:
        """Whether a file may come from this peer: one that others have too does not come from the seeder, for its link
        is for what nobody else has."""
        if self.is_quiet or self.position == 0 or self.paths[index] in self.failed:
            return True
        if self.holders[self.paths[index]] > 1:
            return source is not self.seeder or self.scarce == 0
        return self.distance(index) == 0

    def distance(self, index: int) -> int:
        """From this host to the file's owner, so that each host begins with another owner's files; 0: it is its own."""
        return 0 if self.position == 0 else (index - (self.position - 1)) % self.receivers
