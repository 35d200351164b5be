"""What every host must be below the layers that serve: system, packages, limits, time."""

import re
from collections import defaultdict

import pytest
from testinfra.host import Host as Connection

from aerie.inventory import Gpus
from aerie.lock import Lock
from aerie.snapshot import Limits, Snapshot
from tests.hosts.reading import installed, is_lost, known, unknowns

STALE_KEY = "7FA2AF80"  # NVIDIA's signing key until April 2022


@pytest.mark.finding("base.unsupported-system")
def test_the_system_is_one_that_the_lock_was_proven_on(snapshot: Snapshot, lock: Lock) -> None:
    assert f"{snapshot.os.id}-{snapshot.os.version_id}" in lock.systems
    assert snapshot.machine.arch == lock.arch


@pytest.mark.finding("base.unknown")
def test_everything_could_be_read(snapshot: Snapshot, expected_gpus: Gpus) -> None:
    # What a silent driver or a lost card leaves unread is told by the driver's own requirements.
    if expected_gpus.count == 0 or snapshot.driver.nvml_error or snapshot.driver.loaded_version is None:
        explained: tuple[str, ...] = ("driver.", "gpus", "pci_gpus", "interconnect.", "xids")
    else:
        explained = tuple(f"gpus.{index}." for index, gpu in enumerate(known(snapshot.gpus)) if is_lost(gpu))
    assert {path: why for path, why in unknowns(snapshot) if not path.startswith(explained)} == {}


@pytest.mark.finding("base.apt-broken")
def test_every_package_is_cleanly_installed(snapshot: Snapshot) -> None:
    assert known(snapshot.base.broken_packages) == ()


@pytest.mark.finding("base.apt-locked")
def test_nobody_holds_the_lock_of_apt(snapshot: Snapshot) -> None:
    assert known(snapshot.base.apt_lock_holder) is None


@pytest.mark.finding("base.packages-missing")
def test_the_locked_tools_are_installed(snapshot: Snapshot, lock: Lock) -> None:
    there = installed(known(snapshot.base.packages))
    assert [f"without {name}" for name in lock.base.packages if name not in there] == []


@pytest.mark.finding("base.apt-source-conflict")
def test_no_repository_is_listed_with_two_keys(snapshot: Snapshot) -> None:
    keys = defaultdict(set)
    for source in known(snapshot.base.apt_sources):
        keys[source.uri.rstrip("/")].add(source.signed_by)
    assert {uri: sorted(map(str, paths)) for uri, paths in keys.items() if len(paths) > 1} == {}


@pytest.mark.finding("base.apt-key-stale")
def test_no_key_of_before_2022_is_trusted(snapshot: Snapshot) -> None:
    trusted = set(known(snapshot.base.apt_key_fingerprints))
    for source in known(snapshot.base.apt_sources):
        trusted |= set(known(source.fingerprints))
    assert [key for key in sorted(trusted) if key.endswith(STALE_KEY)] == []


@pytest.mark.finding("base.unattended-upgrades-unsafe")
def test_unattended_upgrades_leave_kernel_and_driver_alone(snapshot: Snapshot, lock: Lock) -> None:
    unattended = known(snapshot.base.unattended)
    if unattended is None or not unattended.is_enabled:
        return
    names = lock.base.unattended_blacklist
    # As unattended-upgrades does: each pattern is matched at the start of a package's name.
    assert [name for name in names if not any(re.match(one, name) for one in unattended.blacklist)] == []


@pytest.mark.finding("base.needrestart-automatic")
def test_needrestart_restarts_nothing_by_itself(snapshot: Snapshot) -> None:
    assert known(snapshot.base.needrestart) != "a"


@pytest.mark.finding("base.limits-low")
def test_sessions_have_the_locked_limits(snapshot: Snapshot, lock: Lock) -> None:
    assert _below(known(snapshot.base.session_limits), lock) == []


@pytest.mark.finding("base.limits-low")
def test_a_new_session_gets_the_locked_limits(host: Connection, lock: Lock) -> None:
    words = host.check_output("ulimit -l; ulimit -n; ulimit -s").split()
    memlock_kib, nofile, stack_kib = (None if word == "unlimited" else int(word) for word in words)
    memlock, stack = (None if kib is None else kib * 1024 for kib in (memlock_kib, stack_kib))
    assert _below(Limits(memlock=memlock, nofile=nofile, stack=stack), lock) == []


@pytest.mark.finding("base.sysctl-drift")
def test_kernel_values_are_the_locked_ones(snapshot: Snapshot, lock: Lock) -> None:
    now = {key: " ".join(value.split()) for key, value in snapshot.base.sysctl.items()}
    assert {key: now[key] for key in lock.base.sysctl if key in now} == {
        key: " ".join(value.split()) for key, value in lock.base.sysctl.items() if key in now
    }


@pytest.mark.finding("base.governor-slow")
def test_processors_run_at_the_locked_governor(snapshot: Snapshot, lock: Lock) -> None:
    if snapshot.base.governors is None:
        pytest.skip("the machine offers no choice of governor")
    assert snapshot.base.governors == (lock.base.governor,)


@pytest.mark.finding("base.time-unsynchronized")
def test_the_clock_is_synchronized(snapshot: Snapshot, lock: Lock) -> None:
    if not lock.base.time_synchronized or snapshot.base.is_time_synchronized is None:
        pytest.skip("the lock leaves the clock alone, or it is the machine's, outside of this container")
    assert known(snapshot.base.is_time_synchronized) is True


@pytest.mark.finding("base.failed-units")
def test_no_unit_has_failed(snapshot: Snapshot) -> None:
    # The fabric manager of a host without switches can only fail: driver.fabricmanager-present tells of it.
    assert [unit for unit in known(snapshot.base.failed_units) if not unit.startswith("nvidia-fabricmanager")] == []


def _below(have: Limits, lock: Lock) -> list[str]:
    """The limits that are lower than the lock's, in words. Unlimited is None here and -1 in the lock."""
    wanted = {"memlock": lock.base.memlock, "nofile": lock.base.nofile, "stack": lock.base.stack}
    low = []
    for name, want in wanted.items():
        value = getattr(have, name)
        if value is not None and (want == -1 or value < want):
            low.append(f"{name} {value}, wants {'unlimited' if want == -1 else want}")
    return low
