"""The kernel that runs and the one that boots next: series, headers, command line, what must not be loaded."""

from collections.abc import Mapping

import pytest

from aerie.lock import Lock
from aerie.snapshot import Snapshot
from tests.hosts.reading import in_series, known


@pytest.mark.finding("kernel.series-mismatch")
def test_the_running_kernel_is_of_the_locked_series(snapshot: Snapshot, lock: Lock) -> None:
    series = lock.kernel.series
    assert [release for release in (snapshot.kernel.release,) if not in_series(release, series)] == []


@pytest.mark.finding("kernel.series-mismatch")
def test_the_kernel_that_boots_next_is_of_the_locked_series(snapshot: Snapshot, lock: Lock) -> None:
    series = lock.kernel.series
    assert [release for release in (known(snapshot.kernel.next_release),) if not in_series(release, series)] == []


@pytest.mark.finding("kernel.reboot-pending")
def test_the_running_kernel_is_the_one_that_boots_next(snapshot: Snapshot, lock: Lock) -> None:
    next_release = known(snapshot.kernel.next_release)
    if not in_series(snapshot.kernel.release, lock.kernel.series):
        pytest.skip("the running kernel is not of the locked series: more than a pending reboot")
    modules = snapshot.driver.modules
    if snapshot.driver.loaded_version and isinstance(modules, Mapping) and next_release not in modules:
        pytest.skip(f"{next_release} has no driver: driver.module-missing forbids the reboot")
    assert snapshot.kernel.release == next_release


@pytest.mark.finding("kernel.headers-missing")
def test_the_kernels_that_may_run_have_headers(snapshot: Snapshot) -> None:
    # A container runs on a kernel that is not its own: only those in /boot can have headers.
    kernels = {snapshot.kernel.release, known(snapshot.kernel.next_release)} & set(snapshot.kernel.installed)
    assert [f"none for {release}" for release in sorted(kernels - set(snapshot.kernel.headers))] == []


@pytest.mark.finding("kernel.cmdline-drift")
def test_the_command_line_has_the_locked_words(snapshot: Snapshot, lock: Lock) -> None:
    words = snapshot.kernel.cmdline.split()
    assert [f"without {word}" for word in lock.kernel.cmdline if word not in words] == []


@pytest.mark.finding("kernel.cmdline-drift")
def test_the_boot_loader_has_the_locked_words(snapshot: Snapshot, lock: Lock) -> None:
    words = known(snapshot.kernel.next_cmdline).split()
    assert [f"without {word}" for word in lock.kernel.cmdline if word not in words] == []


@pytest.mark.finding("kernel.cmdline-drift")
def test_no_word_of_the_command_line_contradicts_a_locked_one(snapshot: Snapshot, lock: Lock) -> None:
    wanted = {word.partition("=")[0]: word for word in lock.kernel.cmdline if "=" in word}
    words = snapshot.kernel.cmdline.split()
    assert [word for word in words if word != wanted.get(word.partition("=")[0], word)] == []


@pytest.mark.finding("kernel.nouveau-loaded")
def test_no_blacklisted_module_is_loaded(snapshot: Snapshot, lock: Lock) -> None:
    assert sorted(set(lock.kernel.blacklist) & set(snapshot.kernel.loaded_modules)) == []


@pytest.mark.finding("kernel.nouveau-not-blacklisted")
def test_the_modules_of_the_blacklist_are_blacklisted(snapshot: Snapshot, lock: Lock) -> None:
    if set(lock.kernel.blacklist) & set(snapshot.kernel.loaded_modules):
        pytest.skip("one of them is loaded: kernel.nouveau-loaded")
    free = sorted(set(lock.kernel.blacklist) - set(snapshot.kernel.blacklisted_modules))
    assert [f"{module} may load" for module in free] == []


@pytest.mark.finding("kernel.secure-boot-unenrolled")
def test_secure_boot_trusts_the_key_that_signs_modules_here(snapshot: Snapshot, needs_gpus: None) -> None:
    if not known(snapshot.kernel.secure_boot):
        pytest.skip("Secure Boot is off or absent")
    assert known(snapshot.kernel.is_signing_key_enrolled) is True
