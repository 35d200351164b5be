"""What differs in a host's base: packages, apt, limits, kernel parameters, time."""

import re
from collections import defaultdict
from collections.abc import Iterator

from aerie.snapshot import Limits

from .case import Case, known
from .model import Finding

__all__ = ["judge"]

STALE_KEY = "7FA2AF80"  # NVIDIA's key of before April 2022
# Units whose failure is a finding of its own: driver.fabricmanager-present, engine.service-failed.
DAMAGED_BY_ITSELF = ("nvidia-fabricmanager", "aerie-engine-")


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer base."""
    yield from _system(case)
    yield from _apt(case)
    yield from _upgrades(case)
    yield from _session(case)
    yield from _running(case)


def _system(case: Case) -> Iterator[Finding]:
    snapshot, lock = case.snapshot, case.lock
    system = f"{snapshot.os.id}-{snapshot.os.version_id}"
    if system not in lock.systems or snapshot.machine.arch != lock.arch:
        yield case.finding(
            "base.unsupported-system",
            seen=f"{system} {snapshot.machine.arch}",
            expected=f"{' or '.join(lock.systems)} {lock.arch}",
        )


def _apt(case: Case) -> Iterator[Finding]:
    base = case.snapshot.base
    if broken := known(base.broken_packages):
        yield case.finding(
            "base.apt-broken", seen=", ".join(broken), expected="every package cleanly installed or removed"
        )
    if holder := known(base.apt_lock_holder):
        yield case.finding("base.apt-locked", seen=holder, expected="nobody")
    sources = known(base.apt_sources) or ()
    keyrings: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for source in sources:
        for suite in source.suites:
            keyrings[source.uri.rstrip("/"), suite].setdefault(source.signed_by or "no Signed-By", source.file)
    for (uri, _), files in keyrings.items():
        if len(files) > 1:
            seen = "; ".join(f"{file}: {keyring}" for keyring, file in files.items())
            yield case.finding(
                "base.apt-source-conflict",
                seen=seen,
                expected=f"one source for {uri}",
                files=" and ".join(files.values()),
            )
            break  # apt stops at the first one too
    trusted = [("trusted for every source", known(base.apt_key_fingerprints) or ())]
    trusted += [(source.signed_by or source.file, known(source.fingerprints) or ()) for source in sources]
    places = sorted({place for place, keys in trusted if any(key.endswith(STALE_KEY) for key in keys)})
    if places:
        yield case.finding(
            "base.apt-key-stale", seen=f"{STALE_KEY} in {', '.join(places)}", expected="this key nowhere"
        )


def _upgrades(case: Case) -> Iterator[Finding]:
    base, lock = case.snapshot.base, case.lock.base
    unattended = known(base.unattended)
    if unattended and unattended.is_enabled:
        open_ = [name for name in lock.unattended_blacklist if not _is_covered(name, unattended.blacklist)]
        if open_:
            yield case.finding(
                "base.unattended-upgrades-unsafe",
                seen=f"on, may upgrade {', '.join(f'{name}*' for name in open_)}",
                expected=f"off, or all of {', '.join(lock.unattended_blacklist)} on its blacklist",
            )
    if known(base.needrestart) == "a":
        yield case.finding("base.needrestart-automatic", seen="a (restarts by itself)", expected="l (lists only)")


def _is_covered(name: str, blacklist: tuple[str, ...]) -> bool:
    """Would a package whose name begins so be left alone? Patterns are regular expressions, matched at the start."""
    for pattern in blacklist:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue  # unattended-upgrades skips it as well
    return False


def _session(case: Case) -> Iterator[Finding]:
    limits = known(case.snapshot.base.session_limits)
    if limits is None:
        return
    low = {name: wanted for name, wanted in _wanted(case).items() if _is_low(getattr(limits, name), wanted)}
    if low:
        yield case.finding(
            "base.limits-low",
            seen=", ".join(f"{name} {_limit(getattr(limits, name))}" for name in low),
            expected=", ".join(f"{name} {_limit(None if wanted < 0 else wanted)}" for name, wanted in low.items()),
        )


def _wanted(case: Case) -> dict[str, int]:
    return {name: int(getattr(case.lock.base, name)) for name in Limits.__dataclass_fields__}


def _is_low(seen: int | None, wanted: int) -> bool:
    return seen is not None and (wanted < 0 or seen < wanted)


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def _running(case: Case) -> Iterator[Finding]:
    base, lock = case.snapshot.base, case.lock.base
    drift = {
        key: base.sysctl[key]
        for key, wanted in lock.sysctl.items()
        if key in base.sysctl and base.sysctl[key].split() != wanted.split()
    }
    if drift:
        yield case.finding(
            "base.sysctl-drift",
            seen=", ".join(f"{key} = {' '.join(value.split())}" for key, value in drift.items()),
            expected=", ".join(f"{key} = {lock.sysctl[key]}" for key in drift),
        )
    slow = sorted(set(base.governors or ()) - {lock.governor})
    if slow:
        yield case.finding("base.governor-slow", seen=", ".join(slow), expected=lock.governor)
    if lock.time_synchronized and known(base.is_time_synchronized) is False:
        yield case.finding("base.time-unsynchronized", seen="not synchronized", expected="synchronized")
    failed = [unit for unit in known(base.failed_units) or () if not unit.startswith(DAMAGED_BY_ITSELF)]
    if failed:
        yield case.finding("base.failed-units", seen=", ".join(failed), expected="none", units=" ".join(failed))
    if known(base.packages) is not None:
        missing = [name for name in lock.packages if name not in case.packages]
        if missing:
            yield case.finding("base.packages-missing", seen=f"without {', '.join(missing)}", expected="installed")
