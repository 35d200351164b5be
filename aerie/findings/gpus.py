"""What is wrong with GPUs as NVML and the kernel's log tell of them: findings of the layer driver."""

from collections.abc import Callable, Collection, Iterator

from aerie.snapshot import Gpu

from .case import Case, address, known, of_gpus
from .model import Finding, Fix

__all__ = ["judge", "lost_at", "present"]

# NVML's field 230; a reboot does what the two resets do, too.
RECOVERY = {1: "GPU reset", 2: "node reboot", 3: "drain P2P", 4: "drain and reset"}
DRAIN_P2P = 3
# Of NVML's clock event reasons those that a healthy GPU never has; the power cap under load (0x4) is not one.
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def judge(case: Case, mine: Collection[str]) -> Iterator[Finding]:
    """The findings of the cards. mine: ids of findings of the driver's software, which explain what NVML says."""
    gpus = known(case.snapshot.gpus)
    if gpus is None or case.snapshot.driver.loaded_version is None or case.snapshot.driver.nvml_error is not None:
        return
    if "driver.closed-module" not in mine:
        yield from _absent(case, gpus)
    if lost := lost_at(case):
        seen = "; ".join(f"{where}: {error}" for where, error in lost.items())
        yield case.finding("driver.gpu-lost", seen=seen, expected="every GPU answers")
    alive = present(case)
    yield from _memory(case, alive)
    yield from _modes(case, alive)
    yield from _power(case, alive)


def present(case: Case) -> tuple[Gpu, ...]:
    """The GPUs that answer."""
    return tuple(gpu for gpu in known(case.snapshot.gpus) or () if gpu.error is None)


def lost_at(case: Case) -> dict[str, str]:
    """NVML's error by the PCI address of each GPU that does not answer.

    NVML may not even tell the address of such a card: it is then the one on the bus that no other card has.
    """
    lost = [gpu for gpu in known(case.snapshot.gpus) or () if gpu.error is not None]
    free = iter(_unclaimed(case))
    return {address(gpu.bus_id) if gpu.bus_id else next(free, f"GPU {gpu.index}"): str(gpu.error) for gpu in lost}


def _unclaimed(case: Case) -> list[str]:
    """Addresses on the bus that no GPU of NVML's has."""
    claimed = {address(gpu.bus_id) for gpu in known(case.snapshot.gpus) or () if gpu.bus_id}
    return [one for gpu in known(case.snapshot.pci_gpus) or () if (one := address(gpu.bus_id)) not in claimed]


def _absent(case: Case, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """On the bus, not in NVML: the driver did not take the card."""
    nameless = sum(not gpu.bus_id for gpu in gpus)
    absent = _unclaimed(case)[nameless:]
    if not absent:
        return
    drivers = {address(gpu.bus_id): gpu.driver for gpu in known(case.snapshot.pci_gpus) or ()}
    names = ", ".join(f"{one} (bound to {drivers[one] or 'no driver'})" for one in absent)
    yield case.finding(
        "driver.gpu-missing",
        seen=f"NVML shows {len(gpus)}, without {names}",
        expected=f"all {len(gpus) + len(absent)} on the bus",
    )


def _which(gpus: Collection[Gpu], text: Callable[[Gpu], str | None]) -> dict[int, str]:
    """The GPUs of which there is something to say, by index."""
    return {gpu.index: said for gpu in gpus if (said := text(gpu)) is not None}


def _memory(case: Case, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    # Off now and on after the next boot is pending, not off.
    if off := _which(gpus, lambda gpu: "off" if gpu.ecc is False and gpu.ecc_pending is not True else None):
        yield case.finding("driver.ecc-off", seen=of_gpus(off, gpus), expected="ECC on")
    on = _which(gpus, lambda gpu: "off now, on at the next boot" if _changes(gpu, to=True) else None)
    off = _which(gpus, lambda gpu: "on now, off at the next boot" if _changes(gpu, to=False) else None)
    if on or off:
        yield case.finding(
            "driver.ecc-pending",
            seen=of_gpus({**on, **off}, gpus),
            expected="ECC on, now and at the next boot",
            fix=Fix.PERSON if off else Fix.REBOOT,
        )
    if errors := _which(
        gpus, lambda gpu: f"{gpu.ecc_uncorrected} uncorrectable" if known(gpu.ecc_uncorrected) else None
    ):
        yield case.finding("driver.ecc-errors", seen=of_gpus(errors, gpus), expected="0 on each GPU")
    failed = _which(gpus, lambda gpu: "remapping failed" if known(gpu.remap_failed) else None)
    if failed:
        yield case.finding("driver.remap-failed", seen=of_gpus(failed, gpus), expected="no failed remapping")
    pending = _which(gpus, lambda gpu: "remapping pending" if known(gpu.remap_pending) else None)
    if pending := {index: text for index, text in pending.items() if index not in failed}:
        yield case.finding("driver.remap-pending", seen=of_gpus(pending, gpus), expected="no pending remapping")


def _modes(case: Case, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    off = _which(gpus, lambda gpu: "off" if gpu.persistence is False else None)
    if off and case.lock.driver.persistence:
        yield case.finding("driver.persistence-off", seen=of_gpus(off, gpus), expected="persistence mode on")
    if cut := _which(
        gpus, lambda gpu: "on" if gpu.mig is True else "on at the next reset" if gpu.mig_pending is True else None
    ):
        yield case.finding("driver.mig-on", seen=of_gpus(cut, gpus), expected="MIG off, now and pending")
    asked = {gpu.index: action for gpu in gpus if (action := known(gpu.recovery_action))}
    if asked:
        words = {index: RECOVERY.get(action, f"action {action}") for index, action in asked.items()}
        is_plain = all(action in RECOVERY and action != DRAIN_P2P for action in asked.values())
        yield case.finding(
            "driver.recovery-needed",
            seen=of_gpus(words, gpus),
            expected="no recovery action",
            fix=Fix.REBOOT if is_plain else Fix.PERSON,
        )


def _power(case: Case, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    wanted: dict[int, int] = {}
    for gpu in gpus:
        limit, default = known(gpu.power_limit_mw), known(gpu.power_limit_default_mw)
        if limit is None:
            continue
        if case.gpus.power_limit_w is not None and limit != case.gpus.power_limit_w * 1000:
            wanted[gpu.index] = case.gpus.power_limit_w
        elif case.gpus.power_limit_w is None and default is not None and limit < default:
            wanted[gpu.index] = default // 1000
    if wanted:
        seen = _which(
            gpus, lambda gpu: f"{(known(gpu.power_limit_mw) or 0) / 1000:g} W" if gpu.index in wanted else None
        )
        least, most = (known(getattr(gpus[0], f"power_limit_{end}_mw")) for end in ("min", "max"))
        span = f" (the card takes {least // 1000} to {most // 1000} W)" if least and most else ""
        watts = sorted(set(wanted.values()))
        which = "" if len(wanted) == len(gpus) and len(watts) == 1 else "--id={} "
        commands = [f"`sudo nvidia-smi {which.format(index)}--power-limit={watt}`" for index, watt in wanted.items()]
        yield case.finding(
            "driver.power-limit",
            seen=of_gpus(seen, gpus),
            expected=" or ".join(f"{watt} W" for watt in watts) + span,
            commands=", ".join(dict.fromkeys(commands)),
        )
    if slow := _which(gpus, lambda gpu: _throttles(known(gpu.clock_event_reasons))):
        yield case.finding("driver.throttled", seen=of_gpus(slow, gpus), expected="no slowdown")


def _throttles(reasons: int | None) -> str | None:
    return ", ".join(text for bit, text in THROTTLES.items() if (reasons or 0) & bit) or None


def _changes(gpu: Gpu, *, to: bool) -> bool:
    """Does ECC go on (off) at the next boot?"""
    return gpu.ecc is (not to) and gpu.ecc_pending is to
