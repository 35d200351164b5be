"""Which file a host fetches next, and from whom: the rule that makes a tree of hosts out of one seeder.

The seeder's link carries every file about once: the hosts share the files among themselves, each takes its share from
the seeder and everything else from whoever has finished it. Nobody coordinates: each host decides from what it sees.
Standard library only, for this runs on the hosts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LIMIT_PER_PEER", "Choice", "Source", "choose"]

LIMIT_PER_PEER = 2  # transfers at once from one peer; more would only finish later, so that others wait for the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that files come from, as a host sees it now."""

    name: str
    is_origin: bool = False
    have: frozenset[str] | None = None  # verified there; None: every file (an origin)
    active: int = 0  # this host's transfers from it at the moment
    failures: int = 0  # in a row; the fewer, the sooner it is asked again
    avoid: frozenset[str] = frozenset()  # came from here broken: only when nobody else has it

    def holds(self, path: str) -> bool:
        """Whether the file can be had from here."""
        return self.have is None or path in self.have


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
    limit_per_peer: int = LIMIT_PER_PEER,
) -> Choice | None:
    """The next transfer that this host should begin, or None when it should wait for one to end or a peer to finish.

    paths: all files of the manifest in its order; missing: those neither verified here nor under way.
    position: this host's number among `hosts`; 0 is the seeder. An origin has no limit but the caller's own.
    A host alone has position 0, hosts 1 and no peers. Call again after every change, until it gives None.
    """
    open_sources = [
        source for source in sources if (may_use_origin if source.is_origin else source.active < limit_per_peer)
    ]
    receivers = max(1, hosts - 1)
    idle = not any(source.active for source in sources)
    best: tuple[tuple[object, ...], Choice] | None = None
    for index, path in enumerate(paths):
        if path not in missing:
            continue
        holders = sum(source.holds(path) for source in sources if not source.is_origin)
        mine = position == 0 or index % receivers == (position - 1) % receivers
        if holders == 1 and not mine and not idle:
            continue  # its owner is about to fetch it, and has a link of its own to hand it on
        turn = (index - position) % len(paths) if position else index
        for source in open_sources:
            if not source.holds(path):
                continue
            size = len(paths) if source.have is None else len(source.have)
            key = (
                path in source.avoid,
                source.failures,
                source.is_origin,
                not mine,
                holders,
                source.active,
                size,
                turn,
            )
            if best is None or key < best[0]:
                best = key, Choice(path, source.name)
    return best[1] if best else None
