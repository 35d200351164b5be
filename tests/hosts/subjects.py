"""The hosts that a run of the tests is about, from pytest's options, and what is known of each."""

from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from urllib.parse import urlparse

import pytest

from aerie import inventory
from aerie.errors import AerieError, UsageError
from aerie.inventory import Gpus, Host, lock_of
from aerie.snapshot import Snapshot, parse
from aerie.testing import Given, given_to
from aerie.verify import Case
from tests.hosts.requirements import Judgement

__all__ = ["Subject", "subjects"]


@dataclass
class Subject:
    """One host of this run. lock: instead of its own. recorded: its snapshot. given: by `verify`, with all of it.

    is_deep: every byte of its weights is read. is_told: its error was reported.
    """

    host: Host
    lock: str | None
    inventory: Path | None
    recorded: Snapshot | None = None
    given: Given | None = None
    is_deep: bool = False
    is_told: bool = False

    @cached_property
    def case(self) -> Case | AerieError:
        """What its tests judge by, or why the host could not be read. The first use probes the host."""
        if self.given:
            return self.given.case
        try:
            lock = lock_of(self.host, self.lock, self.inventory)
            snapshot = self.recorded or _probe(self.host)
        except AerieError as error:
            return error
        today, is_live = date.today(), self.recorded is None
        return Case(host=self.host, lock=lock, snapshot=snapshot, today=today, is_live=is_live, is_deep=self.is_deep)

    @cached_property
    def judgement(self) -> Judgement:
        """Severities and remedies on this host."""
        return Judgement(self.host.name, self.case if isinstance(self.case, Case) else None)

    @property
    def today(self) -> date:
        """The day that waivers are held against."""
        return self.case.today if isinstance(self.case, Case) else date.today()


def subjects(config: pytest.Config) -> list[Subject]:
    """The hosts that the options name; none where they name none. Raises UsageError for what cannot be."""
    if given := given_to(config):
        return [Subject(host=given.host, lock=given.lock, inventory=None, given=given)]
    source = config.getoption("--inventory", None)
    lock = config.getoption("--lock", None)
    if file := config.getoption("--snapshot", None):
        snapshot = parse(Path(file).read_bytes())
        host = _recorded_host(snapshot, source, config.getoption("--hosts", None))
        return [Subject(host=host, lock=lock, inventory=source, recorded=snapshot)]
    words = [word for word in (config.getoption("--hosts", None) or "").split(",") if word]
    deep = bool(config.getoption("--deep", None))
    hosts = [host for word in words for host in _named(word, source)]
    return [Subject(host=host, lock=lock, inventory=source, is_deep=deep) for host in hosts]


def _named(word: str, source: Path | None) -> list[Host]:
    """The hosts of one word of --hosts: testinfra's form, <connection>://<name>."""
    url = urlparse(word if "://" in word else f"ssh://{word}")
    if url.scheme not in ("ssh", "ansible", "local"):
        raise UsageError(
            "--hosts", seen=word, expected="ssh://NAME, ansible://PATTERN or local://", remedy="Correct the word."
        )
    if url.scheme == "ansible":
        return list(inventory.select(url.netloc or "all", source))
    known = inventory.hosts(source)
    name = url.hostname or "localhost"
    by_address = (host for host in known.values() if host.address == name)
    found = known.get(name) or next(by_address, None)
    if found is None:
        connection = "local" if url.scheme == "local" else "ssh"
        found = Host(name=name, address=name, user=url.username, connection=connection, port=url.port)
    return [found]


def _recorded_host(snapshot: Snapshot, source: Path | None, words: str | None) -> Host:
    """The inventory's host of that name; one that it does not know has the GPUs that its bus shows."""
    name = urlparse(words).hostname if words and "://" in words else words or snapshot.machine.hostname
    known = inventory.hosts(source)
    if name in known:
        return known[name]
    count = len(snapshot.pci_gpus) if isinstance(snapshot.pci_gpus, tuple) else 0
    name = name or "recorded"
    return Host(name=name, address=name, user=None, connection="ssh", gpus=Gpus(count=count))


def _probe(host: Host) -> Snapshot:
    from aerie import remote

    return remote.probe(host)
