"""Time until every host of a fan-out has a model verified, against the bound of links and disks: a simulation.

    python benchmarks/fanout.py [--hosts 1,8,16,64] [--shards 64] [--gb 595.2] [--link 1.25] [--disk 6] [--origin 1.4]

Real: `aerie.weights.onhost.schedule.choose`, called as a host calls it, with its limits, its tick and what it knows of
its peers, which it asks every few seconds. Simulated: the bytes. Links are full duplex and shared fairly (max-min), a
file counts when it is hashed, by as many processes as there are cores; each transfer starts with a pause.

The bound is the time in which the bytes of one model pass the narrowest of origin, link and disk: with whole files
that are checked before they are handed on, no fan-out reaches it. "seeded": the seeder has the model already.
Rates in GB/s of 10⁹ bytes. Numbers only, no machine's speed is in them: the same arguments give the same result.
"""

import argparse
import heapq
import itertools
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie.weights.onhost import fetch, peers, schedule  # noqa: E402  (the line above makes it importable)

SMALL = {"config.json": 5_000, "tokenizer.json": 9_000_000, "model.safetensors.index.json": 4_000_000}
PARALLEL = 16  # of the lock's [weights]
STREAM_GB_S = 0.087  # one HTTP connection to the hub (measured by its users)
START_S = 0.3  # the question for the address, and the start of the downloader
HASH_GB_S, CORES = 1.1, 32  # sha256 of one core with SHA-NI, of the lower figures
TARGET = 1.3  # of the bound, up to 16 hosts

Key = tuple[str, int]  # ("up" or "down", host) or ("origin", host): what a transfer shares with others


@dataclass(slots=True, eq=False)
class Transfer:
    """One file on its way to a host. source: a host's number, None for the origin."""

    path: str
    host: int
    source: int | None
    left: float
    starts_at: float
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
    active: Counter[int | None] = field(default_factory=Counter)
    seen: dict[int, frozenset[str]] = field(default_factory=dict)
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
        self.transfers: list[Transfer] = []
        self.hashed: list[tuple[float, int, Host, str]] = []
        self.order = itertools.count()
        self.now = 0.0
        self.sent = [0.0] * hosts

    def run(self) -> float:
        """Seconds until every host has every file verified."""
        while any(len(host.verified) < len(self.files) for host in self.hosts):
            changed = self._hash_ended()
            for host in self.hosts:
                if host.number and self.now >= host.asks_at:
                    seen = {other.number: frozenset(other.verified) for other in self.hosts if other is not host}
                    if seen != host.seen or host.active.total():
                        host.alive_at = self.now
                    host.seen = seen
                    host.asks_at, host.is_due = self.now + peers.INTERVAL_S, True
                if host.is_due:
                    changed |= self._begin(host)
                    host.is_due = False
            changed |= any(one.rate == 0 and one.starts_at <= self.now for one in self.transfers)
            if changed:
                self._share()
            self._move(fetch.TICK_S)
        return self.now

    def _begin(self, host: Host) -> bool:
        began = False
        while host.missing and sum(host.active.values()) < PARALLEL:
            sources = [schedule.Source(name="origin", is_origin=True, active=host.active[None])]
            sources += [
                schedule.Source(name=str(number), have=have, active=host.active[number])
                for number, have in host.seen.items()
            ]
            choice = schedule.choose(
                self.paths, host.missing, sources,
                position=host.number, hosts=len(self.hosts), may_use_origin=host.number == 0,
                is_quiet=self.now - host.alive_at >= schedule.PATIENCE_S,
            )  # fmt: skip
            if choice is None:
                break
            source = None if choice.source == "origin" else int(choice.source)
            host.missing.remove(choice.path)
            host.active[source] += 1
            size = self.files[choice.path]
            self.transfers.append(Transfer(choice.path, host.number, source, size, self.now + START_S))
            began = True
        return began

    def _share(self) -> None:
        """Give every running transfer its max-min fair rate, in bytes a second."""
        running = [one for one in self.transfers if one.starts_at <= self.now]
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

    def _move(self, seconds: float) -> None:
        self.now += seconds
        ended = []
        for one in self.transfers:
            one.left -= one.rate * seconds
            if one.left <= 0:
                ended.append(one)
        for one in ended:
            self.transfers.remove(one)
            host = self.hosts[one.host]
            host.active[one.source] -= 1
            host.is_due = True
            if one.source is not None:
                self.sent[one.source] += self.files[one.path]
            host.to_hash.append(one.path)
            self._hash(host)

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
