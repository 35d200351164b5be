"""Time until every host of a fan-out has a model verified, against the bound of links and disks: a simulation.

    python benchmarks/fanout.py [--hosts 1,8,16,64] [--shards 64] [--gb 595.2] [--link 1.25] [--disk 6] [--origin 1.4]

Real: `aerie.weights.onhost.schedule.choose` on what `wanted.Place.offers` makes of each peer, called as a host calls
them, with their limits, its tick and what it knows of its peers, which it asks every few seconds and which tell a
little late how far they are. Simulated: the bytes. Links are full duplex and shared fairly (max-min), a peer gives what
it has when a transfer starts, a file counts when it is hashed, by as many processes as there are cores; each transfer
starts with a pause.

The bound is the time in which the bytes of one model pass the narrowest of origin, link and disk. "seeded": the seeder
has the model already.
Rates in GB/s of 10⁹ bytes. Numbers only, no machine's speed is in them: the same arguments give the same result.
"""

import argparse
import heapq
import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie.weights.onhost import backends, fetch, peers, schedule  # noqa: E402  (the line above makes it importable)
from aerie.weights.onhost.wanted import Place  # noqa: E402

SMALL = {"config.json": 5_000, "tokenizer.json": 9_000_000, "model.safetensors.index.json": 4_000_000}
PARALLEL = 16  # of the lock's [weights]
STREAM_GB_S = 0.087  # one HTTP connection to the hub (measured by its users)
START_S = 0.3  # the question for the address, and the start of the downloader
HASH_GB_S, CORES = 1.1, 32  # sha256 of one core with SHA-NI, of the lower figures
TARGET = 1.3  # of the bound, up to 16 hosts

Said = tuple[frozenset[str], dict[str, int]]  # what a host tells of itself: verified files, and bytes of others
Key = tuple[str, int]  # ("up" or "down", host) or ("origin", host): what a transfer shares with others


@dataclass(slots=True, eq=False)
class Transfer:
    """A piece of a file on its way to a host. source: a host's number, None for the origin.

    left: bytes of it, None until it starts: a peer gives what it has then.
    """

    path: str
    host: int
    source: int | None
    starts_at: float
    left: float | None = None
    rate: float = 0.0

    def shares(self) -> tuple[Key, ...]:
        """What bounds its rate."""
        down = ("down", self.host)
        if self.source is None:
            return down, ("origin", self.host), (f"stream {self.path}", self.host)
        return down, ("up", self.source)


@dataclass(slots=True)
class Host:
    """One host as it is, and what it knows of its peers, which is a little old."""

    number: int
    verified: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    parts: dict[str, float] = field(default_factory=dict)
    places: dict[int | None, Place] = field(default_factory=dict)
    said: Said = (frozenset(), {})
    said_at: float = 0.0
    hashing: int = 0
    to_hash: list[str] = field(default_factory=list)
    is_due: bool = True  # something changed since the schedule was asked
    alive_at: float = 0.0
    asks_at: float = 0.0


class Fanout:
    """A simulated fan-out of `files` (path and bytes) to `hosts` hosts."""

    def __init__(self, files: dict[str, int], hosts: int, capacity: dict[str, float], *, is_seeded: bool) -> None:
        self.files, self.paths, self.capacity = files, list(files), capacity
        self.hosts = [Host(number=number, missing=set(files)) for number in range(hosts)]
        if is_seeded:
            self.hosts[0].verified, self.hosts[0].missing = set(files), set()
        for host in self.hosts[1:]:
            host.asks_at = host.number / hosts * peers.INTERVAL_S  # they do not ask all at once
        for host in self.hosts:
            host.places[None] = Place(name="origin", kind="http", url="", is_origin=True)
            host.places |= {
                other: Place(name=str(other), kind="http", url="", is_origin=False, have=frozenset())
                for other in range(hosts)
                if other != host.number
            }
            host.said = frozenset(host.verified), {}
        self.transfers: list[Transfer] = []
        self.hashed: list[tuple[float, int, Host, str]] = []
        self.order = itertools.count()
        self.now = 0.0
        self.sent = [0.0] * hosts

    def run(self) -> float:
        """Seconds until every host has every file verified."""
        changed = False
        while any(len(host.verified) < len(self.files) for host in self.hosts):
            self._hash_ended()
            for host in self.hosts:
                if self.now >= host.said_at:
                    host.said = frozenset(host.verified), {path: int(size) for path, size in host.parts.items()}
                    host.said_at = self.now + fetch.TELL_S
                if host.number and self.now >= host.asks_at:
                    self._ask(host)
                if host.is_due:
                    self._begin(host)
                    host.is_due = False
            changed |= self._start()
            if changed:
                self._share()
            changed = self._move(fetch.TICK_S)
        return self.now

    def _ask(self, host: Host) -> None:
        for other in self.hosts:
            if other is host:
                continue
            place = host.places[other.number]
            if (place.have, place.parts) != other.said or place.active:
                host.alive_at = self.now
            place.have, place.parts = other.said
        host.asks_at, host.is_due = self.now + peers.INTERVAL_S, True

    def _begin(self, host: Host) -> None:
        places = host.places.values()
        while host.missing and sum(place.active for place in places) < PARALLEL:
            offers = [place.offers(self.files, host.parts) for place in places]
            choice = schedule.choose(
                self.paths, host.missing, [one for one in offers if one is not None],
                position=host.number, hosts=len(self.hosts), may_use_origin=host.number == 0,
                is_quiet=self.now - host.alive_at >= schedule.PATIENCE_S,
            )  # fmt: skip
            if choice is None:
                break
            source = None if choice.source == "origin" else int(choice.source)
            host.missing.remove(choice.path)
            host.places[source].active += 1
            self.transfers.append(Transfer(choice.path, host.number, source, self.now + START_S))

    def _start(self) -> bool:
        """Begin what is to begin now; whether there is something."""
        starting = [one for one in self.transfers if one.left is None and one.starts_at <= self.now]
        for one in starting:
            size, have = self.files[one.path], self.hosts[one.host].parts.get(one.path, 0)
            source = None if one.source is None else self.hosts[one.source]
            there = size if source is None or one.path in source.verified else source.parts[one.path]
            if source is not None:
                there = min(there, have + backends.PIECE_BYTES)
            one.left = there - have
        return bool(starting)

    def _share(self) -> None:
        """Give every running transfer its max-min fair rate, in bytes a second."""
        running = [one for one in self.transfers if one.left is not None]
        users: dict[Key, set[Transfer]] = {}
        for one in running:
            for key in one.shares():
                users.setdefault(key, set()).add(one)
        room = {key: self.capacity[key[0].split()[0]] for key in users}
        while users:
            tightest = min(users, key=lambda key: room[key] / len(users[key]))
            rate = max(1.0, room[tightest] / len(users[tightest]))
            for one in tuple(users[tightest]):
                one.rate = rate
                for key in one.shares():
                    room[key] -= rate
                    users[key].discard(one)
                    if not users[key]:
                        del users[key]

    def _move(self, seconds: float) -> bool:
        self.now += seconds
        ended = []
        for one in self.transfers:
            if one.left is None:
                continue
            moved = min(one.left, one.rate * seconds)
            one.left -= moved
            parts = self.hosts[one.host].parts
            parts[one.path] = parts.get(one.path, 0) + moved
            if one.source is not None:
                self.sent[one.source] += moved
            if one.left <= 0:
                ended.append(one)
        for one in ended:
            self.transfers.remove(one)
            host = self.hosts[one.host]
            host.places[one.source].active -= 1
            host.is_due = True
            if round(host.parts[one.path]) >= self.files[one.path]:
                host.parts[one.path] = self.files[one.path]
                host.to_hash.append(one.path)
                self._hash(host)
            else:
                host.missing.add(one.path)
        return bool(ended)

    def _hash(self, host: Host) -> None:
        while host.to_hash and host.hashing < CORES:
            path = host.to_hash.pop(0)
            host.hashing += 1
            ends_at = self.now + self.files[path] / (HASH_GB_S * 1e9)
            heapq.heappush(self.hashed, (ends_at, next(self.order), host, path))

    def _hash_ended(self) -> bool:
        is_any = False
        while self.hashed and self.hashed[0][0] <= self.now:
            _, _, host, path = heapq.heappop(self.hashed)
            host.hashing -= 1
            host.verified.add(path)
            del host.parts[path]
            self._hash(host)
            is_any = True
        return is_any


def main(arguments: argparse.Namespace) -> None:
    """Print a line for each number of hosts, seeded and not."""
    size = int(arguments.gb * 1e9)
    shard = size // arguments.shards
    files = {
        f"model-{number:05d}-of-{arguments.shards:05d}.safetensors": shard for number in range(1, arguments.shards + 1)
    }
    files = dict(sorted((files | SMALL).items()))
    down = min(arguments.link, arguments.disk)
    capacity = {"up": arguments.link, "down": down, "origin": arguments.origin, "stream": STREAM_GB_S}
    capacity = {name: rate * 1e9 for name, rate in capacity.items()}
    print(f"{arguments.gb:g} GB in {arguments.shards} shards; GB/s: link {arguments.link:g}, disk {arguments.disk:g}, "
          f"origin {arguments.origin:g} ({STREAM_GB_S:g} a stream)")  # fmt: skip
    for is_seeded in (True, False):
        for hosts in arguments.hosts:
            if is_seeded and hosts == 1:
                continue
            fanout = Fanout(files, hosts, capacity, is_seeded=is_seeded)
            seconds = fanout.run()
            narrowest = down if is_seeded else min(down, arguments.origin)
            bound = sum(files.values()) / (narrowest * 1e9)
            ratio = seconds / bound
            verdict = "" if hosts > 16 else f"target {TARGET}: {'met' if ratio <= TARGET else 'MISSED'}"
            copies = fanout.sent[0] / sum(files.values())
            how = "seeded" if is_seeded else "from the origin"
            print(f"{hosts:3} hosts, {how:15} {seconds:7.0f} s, bound {bound:5.0f} s, ratio {ratio:5.2f} "
                  f"{verdict:18} seeder sent {copies:.2f} models")  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=lambda text: [int(word) for word in text.split(",")], default=[1, 8, 16, 64])
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--gb", type=float, default=595.2)
    parser.add_argument("--link", type=float, default=1.25, help="GB/s of each host, both ways (10 GbE: 1.25)")
    parser.add_argument("--disk", type=float, default=6.0, help="GB/s that a host can write")
    parser.add_argument("--origin", type=float, default=1.4, help="GB/s from the origin to the seeder")
    return parser.parse_args()


if __name__ == "__main__":
    main(_arguments())
