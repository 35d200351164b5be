"""What differs in how a host's GPUs reach each other and the processors: bus, links, IOMMU, ACS, peer-to-peer."""

from collections.abc import Collection, Iterator

from aerie.snapshot import Gpu

from . import gpus as cards
from .case import Case, address, known, of_gpus
from .kernel import IOMMU_WORDS, lacking_words
from .model import Finding

__all__ = ["judge"]

MIB = 1 << 20
SHOWN = 6


def judge(case: Case, causes: Collection[str]) -> Iterator[Finding]:
    """The findings of the layer interconnect. causes: ids of findings of the layers before."""
    yield from _bus(case)
    # With the wrong driver the cards' answers are not what the lock's driver would say, but width and BAR1 are.
    yield from _links(case, cards.present(case))
    yield from _translation(case, causes)
    yield from _peers(case)


def _bus(case: Case) -> Iterator[Finding]:
    on_bus, wanted = known(case.snapshot.pci_gpus), case.gpus
    if on_bus is None:
        return
    gpus = known(case.snapshot.gpus) or ()
    if len(on_bus) < wanted.count:
        addresses = {address(one.bus_id) for one in on_bus}
        absent = [address(one) for one in wanted.bus_ids if address(one) not in addresses]
        serials = {serial for gpu in gpus if (serial := known(gpu.serial))}
        absent += [f"serial {serial}" for serial in wanted.serials if serials and serial not in serials]
        seen = f"{len(on_bus)} on the bus" + (f", without {', '.join(absent)}" if absent else "")
        yield case.finding("interconnect.gpu-missing", seen=seen, expected=f"{wanted.count} of the inventory")
        return
    others = {gpu.index: gpu.name for gpu in cards.present(case) if wanted.model not in gpu.name}
    if others and len(gpus) - len(others) < wanted.count:
        seen = f"{len(gpus) - len(others)} {wanted.model}; {of_gpus(others, gpus)}"
        yield case.finding("interconnect.gpu-missing", seen=seen, expected=f"{wanted.count} {wanted.model}")


def _links(case: Case, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    lock, small, narrow, slow = case.lock.interconnect, {}, {}, {}
    for gpu in gpus:
        bar1, memory = known(gpu.bar1_bytes), known(gpu.memory_bytes)
        if bar1 is not None and memory is not None and bar1 < memory:
            small[gpu.index] = f"{bar1 // MIB} MiB of {memory // MIB} MiB"
        if (width := known(gpu.link_width)) is not None and width < lock.link_width:
            narrow[gpu.index] = f"x{width}"
        if (gen := known(gpu.link_gen_max)) is not None and gen < lock.link_gen:
            slow[gpu.index] = f"generation {gen} at most"
    if small:
        yield case.finding(
            "interconnect.bar1-small", seen=of_gpus(small, gpus), expected="a BAR1 as large as the memory, on each GPU"
        )
    if narrow:
        yield case.finding("interconnect.link-narrow", seen=of_gpus(narrow, gpus), expected=f"x{lock.link_width}")
    if slow:
        yield case.finding(
            "interconnect.link-gen-low", seen=of_gpus(slow, gpus), expected=f"generation {lock.link_gen}"
        )


def _translation(case: Case, causes: Collection[str]) -> Iterator[Finding]:
    snapshot, lock = case.snapshot, case.lock.interconnect
    interconnect = snapshot.interconnect
    drifting = {word.partition("=")[0] for word in lacking_words(case, snapshot.kernel.cmdline)}
    by_cmdline = "kernel.cmdline-drift" in causes and bool(drifting & set(IOMMU_WORDS))
    mode = known(interconnect.iommu)
    is_wrong = mode is not None and mode not in lock.iommu
    if is_wrong and not by_cmdline:
        yield case.finding("interconnect.iommu-translating", seen=str(mode), expected=" or ".join(lock.iommu))
    acs = known(interconnect.acs) or ()
    if acs and lock.acs == "cleared":
        bridges = ", ".join(f"{one.bus_id} ({one.control:#06x})" for one in acs[:SHOWN])
        more = f" and {len(acs) - SHOWN} more" if len(acs) > SHOWN else ""
        yield case.finding("interconnect.acs-redirecting", seen=f"{bridges}{more}", expected="cleared on every bridge")
    faults = known(interconnect.io_page_faults)
    if faults and not is_wrong and not by_cmdline:
        yield case.finding("interconnect.io-page-faults", seen=f"{faults} since boot", expected="none")


def _peers(case: Case) -> Iterator[Finding]:
    pairs = known(case.snapshot.interconnect.p2p)
    if not pairs or not case.lock.interconnect.p2p:
        return
    alive = {str(gpu.index) for gpu in cards.present(case)}
    broken = {pair: state for pair, state in pairs.items() if state != "ok" and set(pair.split(">")) <= alive}
    if not broken:
        return
    states = sorted(set(broken.values()))
    seen = "; ".join(f"{state}: {_pairs([pair for pair, its in broken.items() if its == state])}" for state in states)
    yield case.finding("interconnect.p2p-broken", seen=seen, expected=f"ok for all {len(pairs)} pairs")


def _pairs(pairs: list[str]) -> str:
    return ", ".join(pairs[:SHOWN]) + (f" and {len(pairs) - SHOWN} more pairs" if len(pairs) > SHOWN else "")
