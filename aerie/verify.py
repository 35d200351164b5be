"""Verification of hosts: the tests of tests/hosts, one pytest process per host, several at a time."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from . import inventory, snapshot
from .choice import unknown_name
from .errors import AerieError, UsageError
from .inventory import Host
from .layers import LAYERS
from .lock import Lock
from .paths import repository
from .snapshot import Snapshot
from .verification import HostVerification, Requirement, Verification

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Case", "Listener", "Verification", "run", "verify"]

TESTS = Path("tests") / "hosts"  # below the repository
HOST_TIMEOUT_S = 300
DEEP_TIMEOUT_S = 4 * 3600  # 595 GB from a disk of 60 MB/s would take longer
ERROR_LINES = 12
# Of a host's variables those that a connection of OpenSSH needs: nothing secret is among them.
CONNECTION = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
# What the project's own tests are run with is not for hosts: a warning of a library fails no host.
PYTEST = ("-p", "no:cacheprovider", "-o", "addopts=--strict-markers", "-o", "filterwarnings=default")

Listener = Callable[[HostVerification], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that the tests of one host judge by. lock: with the host's own variables in it.

    is_live: tests may ask the host itself; without, those that would are skipped. is_deep: also those that read every
    byte of its weights.
    """

    host: Host
    lock: Lock
    snapshot: Snapshot
    today: date
    is_live: bool
    is_deep: bool = False

    def dump(self) -> bytes:
        """As JSON; of the host's variables those of its connection only."""
        kept = {key: value for key, value in self.host.variables.items() if key in (*CONNECTION, *KEYS)}
        return _adapter().dump_json(replace(self, host=replace(self.host, variables=kept)), by_alias=True)

    @classmethod
    def load(cls, document: bytes) -> "Case":
        """What dump gave."""
        return _adapter().validate_json(document)


@cache
def _adapter() -> "TypeAdapter[Case]":
    # Made on first use: it takes a tenth of a second.
    from pydantic import TypeAdapter

    return TypeAdapter(Case)


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
) -> Verification:
    """Every requirement on the hosts of this pattern; those that fail are `@failed` afterwards.

    path: of the inventory. lock: instead of each host's own. recorded: a snapshot in a file, for one host, which is
    then not asked anything. deep: hash all weights again, on the hosts. Raises UsageError for an unknown host, lock or
    layer, AerieError for a broken snapshot.
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
    )
    if recorded is None:
        inventory.record_failed(result.failed_hosts)
    return result


def run(
    hosts: Sequence[Host],
    *,
    locks: Mapping[str, Lock],
    layers: Sequence[str] = (),
    snapshots: Mapping[str, Snapshot] | None = None,
    forks: int = 16,
    is_live: bool = True,
    deep: bool = False,
    listener: Listener = lambda host: None,
) -> Verification:
    """Every requirement of these layers (of all, where none is named) on every host, whatever becomes of the others.

    locks: by host name, with the host's variables in them. snapshots: by host name, of hosts that need no probe;
    is_live=False asks the hosts nothing else either. deep: as in `verify`. forks: hosts at a time. listener is called
    with each host as it ends, from several threads. Raises UsageError for a layer without tests.
    """
    started = time.monotonic()
    modules = _modules(layers)
    given = dict(snapshots or {})
    read = {**given, **_probe([host for host in hosts if host.name not in given], forks)}

    def one(host: Host) -> HostVerification:
        found = read[host.name]
        if isinstance(found, Snapshot):
            lock, today = locks[host.name], date.today()
            case = Case(host=host, lock=lock, snapshot=found, today=today, is_live=is_live, is_deep=deep)
            result = _verify(case, modules)
        else:
            result = _not_read(host, locks[host.name], found)
        listener(result)
        return result

    with ThreadPoolExecutor(max_workers=max(1, forks)) as pool:
        done = tuple(pool.map(one, hosts))
    return Verification(hosts=done, wall_s=time.monotonic() - started)


def _modules(layers: Sequence[str]) -> dict[str, Path]:
    """The test module of each of these layers, below the repository, in the layers' order."""
    known = {layer: path for layer in LAYERS if (repository() / (path := TESTS / f"test_{layer}.py")).exists()}
    for layer in layers:
        if layer not in known:
            raise unknown_name("layer", layer, known, "Leave --layer out for all of them.")
    return {layer: path for layer, path in known.items() if not layers or layer in layers}


def _recorded(file: Path) -> Snapshot:
    try:
        return snapshot.parse(file.read_bytes())
    except OSError as error:
        seen = error.strerror or str(error)
        raise UsageError(str(file), seen=seen, expected="a snapshot", remedy="./invoke snapshot prints one.") from error


def _probe(hosts: Sequence[Host], forks: int) -> dict[str, Snapshot | AerieError]:
    if not hosts:
        return {}
    from . import remote

    return remote.probe_all(hosts, forks=forks)


def _not_read(host: Host, lock: Lock, error: AerieError) -> HostVerification:
    from . import remote

    is_reached = not isinstance(error, remote.Unreachable)
    return HostVerification(host=host.name, lock=lock.name, error=str(error), is_reached=is_reached)


def _verify(case: Case, modules: Mapping[str, Path]) -> HostVerification:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aerie-") as name:  # 0700
        source, results = Path(name) / "case.json", Path(name) / "results.json"
        source.write_bytes(case.dump())
        limit_s = DEEP_TIMEOUT_S if case.is_deep else HOST_TIMEOUT_S
        error = _pytest(source, results, list(modules.values()), limit_s)
        rows = json.loads(results.read_text()).get(case.host.name, []) if results.exists() else []
    order = list(modules)
    found = sorted((Requirement.from_dict(row) for row in rows), key=lambda one: order.index(one.layer))
    return HostVerification(
        host=case.host.name,
        lock=case.lock.name,
        requirements=tuple(found),
        error=error,
        wall_s=time.monotonic() - started,
    )


def _pytest(case: Path, results: Path, paths: Sequence[Path], timeout_s: float) -> str:
    """Why the tests could not all be run; "" when they were, whatever they found."""
    argv = [sys.executable, "-m", "pytest", *PYTEST, "--quiet", *map(str, paths)]
    argv += ["--case", str(case), "--results", str(results)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    try:
        done = subprocess.run(
            argv, cwd=repository(), env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its tests did not end within {timeout_s:g} s"
    if done.returncode in (0, 1) and results.exists():
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"pytest ended with {done.returncode}: " + " | ".join(lines[-ERROR_LINES:])
