"""Verification of hosts: the tests of tests/hosts, one process per host, several at a time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from . import inventory, testing
from .choice import unknown_name
from .errors import AerieError, UsageError
from .inventory import Host
from .layers import LAYERS
from .lock import Lock
from .paths import repository

if TYPE_CHECKING:  # at work they are imported while the hosts are read or tested, which comes first
    from .snapshot import Snapshot
    from .verification import HostVerification, Verification

__all__ = ["Case", "Listener", "run", "verify"]

TESTS = Path("tests") / "hosts"  # below the repository
HOST_TIMEOUT_S = 300
DEEP_TIMEOUT_S = 4 * 3600  # 595 GB from a disk of 60 MB/s would take longer

Listener = Callable[["HostVerification"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that the tests of one host judge by. lock: with the host's own variables in it.

    is_live: tests may ask the host itself; without, those that would are skipped. is_deep: also those that read every
    byte of its weights, and those that run kernels on its GPUs.
    """

    host: Host
    lock: Lock
    snapshot: "Snapshot"
    today: date
    is_live: bool
    is_deep: bool = False


def verify(
    pattern: str,
    *,
    path: Path | None = None,
    lock: str | None = None,
    layers: Sequence[str] = (),
    forks: int = 16,
    recorded: Path | None = None,
    deep: bool = False,
    listener: Listener = lambda host: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> "Verification":
    """Every requirement on the hosts of this pattern; those that fail are `@failed` afterwards.

    path: of the inventory. lock: instead of each host's own. recorded: a snapshot in a file, for one host, which is
    then not asked anything. deep: hash all weights again and prove the GPUs, on the hosts. meanwhile: called while
    tests run. Raises UsageError for an unknown host, lock or layer, AerieError for a broken snapshot.
    """
    hosts = inventory.select(pattern, path)
    locks = {host.name: inventory.lock_of(host, lock, path) for host in hosts}
    snapshots: dict[str, Snapshot] = {}
    if recorded is not None:
        if len(hosts) != 1:
            seen = f"{len(hosts)} hosts"
            raise UsageError("--snapshot", seen=seen, expected="one host", remedy="A snapshot is of one host.")
        snapshots = {hosts[0].name: _recorded(recorded)}
    result = run(
        hosts,
        locks=locks,
        layers=layers,
        snapshots=snapshots,
        forks=forks,
        is_live=recorded is None,
        deep=deep,
        listener=listener,
        meanwhile=meanwhile,
    )
    if recorded is None:
        inventory.record_failed(result.failed_hosts)
    return result


def run(
    hosts: Sequence[Host],
    *,
    locks: Mapping[str, Lock],
    layers: Sequence[str] = (),
    snapshots: "Mapping[str, Snapshot] | None" = None,
    forks: int = 16,
    is_live: bool = True,
    deep: bool = False,
    listener: Listener = lambda host: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> "Verification":
    """Every requirement of these layers (of all, where none is named) on every host, whatever becomes of the others.

    locks: by host name, with the host's variables in them. snapshots: by host name, of hosts that need no probe;
    is_live=False asks the hosts nothing else either. forks: hosts at a time. listener is called with each host as it
    ends, meanwhile once, while tests run. Raises UsageError for a layer without tests.
    """
    started = time.monotonic()
    modules, given = _modules(layers), dict(snapshots or {})
    cases, results = [], {}
    limit_s = DEEP_TIMEOUT_S if deep else HOST_TIMEOUT_S
    with testing.HostTests(list(modules.values()), timeout_s=limit_s) as tests:
        if len(hosts) > 1:
            testing.prepare()  # once for all; the tests of a single host do it while the host is read
        for host in hosts[: max(1, forks)]:
            tests.begin(host, locks[host.name].name, is_live=is_live)
        read = {**given, **_probe([host for host in hosts if host.name not in given], forks)}
        from .snapshot import Snapshot

        for host in hosts:
            found = read[host.name]
            if isinstance(found, Snapshot):
                lock, today = locks[host.name], date.today()
                case = Case(host=host, lock=lock, snapshot=found, today=today, is_live=is_live, is_deep=deep)
                cases.append(case)
            else:
                results[host.name] = _not_read(host, locks[host.name], found)
                listener(results[host.name])
        ended = tests.results(cases, forks)
        from .verification import Verification

        meanwhile()
        for tested in ended:
            results[tested.host] = _of_tests(tested, locks[tested.host], list(modules))
            listener(results[tested.host])
    return Verification(hosts=tuple(results[host.name] for host in hosts), wall_s=time.monotonic() - started)


def _modules(layers: Sequence[str]) -> dict[str, Path]:
    """The test module of each of these layers, below the repository, in the layers' order."""
    known = {layer: path for layer in LAYERS if (repository() / (path := TESTS / f"test_{layer}.py")).exists()}
    for layer in layers:
        if layer not in known:
            raise unknown_name("layer", layer, known, "Leave --layer out for all of them.")
    return {layer: path for layer, path in known.items() if not layers or layer in layers}


def _recorded(file: Path) -> "Snapshot":
    from . import snapshot

    try:
        return snapshot.parse(file.read_bytes())
    except OSError as error:
        seen = error.strerror or str(error)
        raise UsageError(str(file), seen=seen, expected="a snapshot", remedy="./invoke snapshot prints one.") from error


def _probe(hosts: Sequence[Host], forks: int) -> "dict[str, Snapshot | AerieError]":
    if not hosts:
        return {}
    from . import remote

    return remote.probe_all(hosts, forks=forks)


def _not_read(host: Host, lock: Lock, error: AerieError) -> "HostVerification":
    from . import remote
    from .verification import HostVerification

    is_reached = not isinstance(error, remote.Unreachable)
    return HostVerification(host=host.name, lock=lock.name, error=str(error), is_reached=is_reached)


def _of_tests(tested: testing.Tested, lock: Lock, layers: Sequence[str]) -> "HostVerification":
    from .verification import HostVerification

    return HostVerification(
        host=tested.host,
        lock=lock.name,
        requirements=tuple(sorted(tested.requirements, key=lambda one: layers.index(one.layer))),
        error=tested.error,
        wall_s=tested.wall_s,
    )
