"""What differs in a host's kernels: the running one, the one that boots next, their command line, Secure Boot."""

import re
from collections.abc import Iterator

from .case import Case, known
from .model import Finding, Fix

__all__ = ["IOMMU_WORDS", "judge", "lacking_words"]

IOMMU_WORDS = ("iommu", "amd_iommu", "intel_iommu")
# Where each system keeps the key that signs DKMS modules, and what makes one.
KEYS = {
    "ubuntu": ("/var/lib/shim-signed/mok/MOK.der", "sudo update-secureboot-policy --new-key"),
    "debian": ("/var/lib/dkms/mok.pub", "sudo dkms generate_mok"),
}


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer kernel."""
    yield from _series(case)
    yield from _headers(case)
    yield from _cmdline(case)
    yield from _modules(case)
    yield from _secure_boot(case)


def _series(case: Case) -> Iterator[Finding]:
    kernel, lock = case.snapshot.kernel, case.lock.kernel
    next_release = case.next_release
    running_fits, next_fits = (_fits(release, lock.series) for release in (kernel.release, next_release))
    if running_fits and next_fits:
        if next_release != kernel.release:
            yield case.finding(
                "kernel.reboot-pending", seen=f"{kernel.release} runs", expected=f"{next_release}, which boots next"
            )
        return
    # A newer kernel boots before the one that the lock's image would bring.
    is_newer = max(map(_numbers, lock.series)) < _numbers(next_release)
    is_beyond_provision = not lock.image or is_newer
    fix = Fix.REBOOT if next_fits else Fix.PERSON if is_beyond_provision else Fix.PROVISION
    what = (
        f"{next_release} would still boot first: purge its packages, or give {case.host} a lock for its series."
        if is_newer
        else f"The lock leaves the kernel's package alone: install one of {' or '.join(lock.series)} on {case.host}."
    )
    seen = f"{kernel.release} runs" if next_release == kernel.release else (
        f"{kernel.release} runs, {next_release} boots next"
    )  # fmt: skip
    # Where only the next boot goes wrong, the running kernel is right: the boot loader is mended, nothing is rebooted.
    yield case.finding(
        "kernel.series-mismatch",
        seen=seen,
        expected=" or ".join(lock.series),
        fix=fix,
        needs_reboot=not running_fits,
        what=what,
    )


def _fits(release: str, series: tuple[str, ...]) -> bool:
    """Does "6.8.0-31-generic" belong to "6.8"? "6.1" has no part in 6.17."""
    return not series or any(release.startswith(one) and not release[len(one) :][:1].isdigit() for one in series if one)


def _numbers(release: str) -> tuple[int, ...]:
    """(6, 8) of "6.8.0-31-generic": what is compared of kernels and series."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


def _headers(case: Case) -> Iterator[Finding]:
    kernel = case.snapshot.kernel
    # Only kernels in /boot can get headers; a container runs on a kernel that is not its own.
    bootable = [
        release for release in dict.fromkeys((kernel.release, case.next_release)) if release in kernel.installed
    ]
    missing = [release for release in bootable if release not in kernel.headers]
    if missing:
        yield case.finding(
            "kernel.headers-missing",
            seen=f"none for {', '.join(missing)}",
            expected=", ".join(f"linux-headers-{release}" for release in missing),
        )


def lacking_words(case: Case, cmdline: str) -> tuple[str, ...]:
    """The lock's words that this command line lacks or contradicts, in the lock's order."""
    wanted = case.lock.kernel.cmdline
    words = cmdline.split()
    return tuple(word for word in wanted if word not in words or _contradicted(word, words, wanted))


def _contradicted(word: str, words: list[str], wanted: tuple[str, ...]) -> bool:
    """Is there another value for the key of "iommu=pt" that the lock does not name too?"""
    key, equals, _ = word.partition("=")
    return bool(equals) and any(other.startswith(f"{key}=") and other not in wanted for other in words)


def _cmdline(case: Case) -> Iterator[Finding]:
    kernel = case.snapshot.kernel
    running = lacking_words(case, kernel.cmdline)
    next_cmdline = known(kernel.next_cmdline)
    after = lacking_words(case, next_cmdline) if next_cmdline is not None else running
    lacking = dict.fromkeys((*running, *after))
    if not lacking:
        return
    keys = tuple(f"{word.partition('=')[0]}=" for word in lacking)
    others = [word for word in kernel.cmdline.split() if word.startswith(keys) and word not in lacking]
    seen = f"without {' '.join(running)}" if running else f"without {' '.join(after)} at the next boot"
    if others and running:
        seen += f", with {' '.join(others)}"
    yield case.finding(
        "kernel.cmdline-drift",
        seen=seen,
        expected=" ".join(case.lock.kernel.cmdline),
        fix=Fix.PROVISION if after else Fix.REBOOT,
        needs_reboot=bool(running),
    )


def _modules(case: Case) -> Iterator[Finding]:
    kernel, wanted = case.snapshot.kernel, case.lock.kernel.blacklist
    if "nouveau" in kernel.loaded_modules and "nouveau" in wanted:
        yield case.finding("kernel.nouveau-loaded", seen="nouveau loaded", expected="not loaded")
        return
    free = [module for module in wanted if module not in kernel.blacklisted_modules]
    if free:
        yield case.finding(
            "kernel.nouveau-not-blacklisted",
            seen=f"{', '.join(free)} may load",
            expected=f"blacklist {', '.join(free)}",
        )


def _secure_boot(case: Case) -> Iterator[Finding]:
    kernel = case.snapshot.kernel
    enrolled = kernel.is_signing_key_enrolled
    if not case.has_gpus or known(kernel.secure_boot) is not True or enrolled not in (False, None):
        return
    key, make = KEYS.get(case.snapshot.os.id, KEYS["debian"])
    enrol = f"`sudo mokutil --import {key}`"
    yield case.finding(
        "kernel.secure-boot-unenrolled",
        seen="Secure Boot on, " + ("no signing key yet" if enrolled is None else f"{key} not enrolled"),
        expected="the signing key enrolled, or Secure Boot off",
        commands=f"`{make}`, {enrol}" if enrolled is None else enrol,
    )
