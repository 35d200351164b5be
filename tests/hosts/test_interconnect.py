"""How GPUs reach memory and each other: the bus, its links, IOMMU and ACS, peer access."""

import pytest

from aerie.gpus.proof import Collective, Pair, Proof
from aerie.inventory import Gpus
from aerie.lock import Lock
from aerie.snapshot import Gpu, PciGpu, Snapshot
from tests.hosts.reading import is_lost, known, named, offenders, short_bus_id

pytestmark = pytest.mark.usefixtures("needs_gpus")


@pytest.mark.finding("interconnect.gpu-missing")
def test_every_gpu_of_the_inventory_is_on_the_bus(pci_gpus: tuple[PciGpu, ...], expected_gpus: Gpus) -> None:
    on_bus = {short_bus_id(gpu.bus_id) for gpu in pci_gpus}
    assert sorted(set(expected_gpus.bus_ids) - on_bus) == []
    assert len(on_bus) >= expected_gpus.count


@pytest.mark.finding("interconnect.gpu-missing")
def test_every_gpu_is_of_the_model_in_the_inventory(gpus: tuple[Gpu, ...], expected_gpus: Gpus) -> None:
    names = {named(gpu): gpu.name for gpu in gpus if not is_lost(gpu)}
    assert {gpu: name for gpu, name in names.items() if expected_gpus.model not in name} == {}


@pytest.mark.finding("interconnect.bar1-small")
def test_every_gpu_maps_all_of_its_memory(gpus: tuple[Gpu, ...]) -> None:
    sized = [(gpu, gpu.bar1_bytes, gpu.memory_bytes) for gpu in gpus]
    assert {
        named(gpu): f"{bar1 // 2**20} MiB of {memory // 2**20}"
        for gpu, bar1, memory in sized
        if isinstance(bar1, int) and isinstance(memory, int) and bar1 < memory
    } == {}


@pytest.mark.finding("interconnect.link-narrow")
def test_every_gpu_has_the_locked_lanes(gpus: tuple[Gpu, ...], lock: Lock) -> None:
    assert offenders(gpus, "link_width", lambda lanes: lanes < lock.interconnect.link_width) == {}


@pytest.mark.finding("interconnect.link-gen-low")
def test_every_gpu_can_run_its_link_at_the_locked_speed(gpus: tuple[Gpu, ...], lock: Lock) -> None:
    # The speed right now proves nothing: an idle link trains down.
    assert offenders(gpus, "link_gen_max", lambda gen: gen < lock.interconnect.link_gen) == {}


@pytest.mark.finding("interconnect.acs-redirecting")
def test_no_bridge_sends_peer_traffic_over_the_root(snapshot: Snapshot, lock: Lock) -> None:
    if lock.interconnect.acs == "any":
        pytest.skip("the lock allows any ACS")
    assert {bridge.bus_id: hex(bridge.control) for bridge in known(snapshot.interconnect.acs)} == {}


@pytest.mark.finding("interconnect.iommu-translating")
def test_the_iommu_is_in_a_locked_mode(snapshot: Snapshot, lock: Lock) -> None:
    asked = [word for word in lock.kernel.cmdline if "iommu" in word]
    if not set(asked) <= set(snapshot.kernel.cmdline.split()):
        pytest.skip(f"the command line lacks {' '.join(asked)}: kernel.cmdline-drift")
    assert known(snapshot.interconnect.iommu) in lock.interconnect.iommu


@pytest.mark.finding("interconnect.p2p-broken")
def test_every_pair_of_gpus_can_reach_each_other(snapshot: Snapshot, gpus: tuple[Gpu, ...], lock: Lock) -> None:
    if not lock.interconnect.p2p:
        pytest.skip("the lock wants no peer access")
    p2p = known(snapshot.interconnect.p2p)
    alive = [gpu.index for gpu in gpus if not is_lost(gpu)]
    pairs = [f"{one}>{other}" for one in alive for other in alive if one != other]
    assert {pair: p2p.get(pair, "not read") for pair in pairs if p2p.get(pair) != "ok"} == {}


@pytest.mark.finding("interconnect.io-page-faults")
def test_the_iommu_stopped_no_transfer_since_boot(snapshot: Snapshot) -> None:
    assert known(snapshot.interconnect.io_page_faults) == 0


@pytest.mark.finding("interconnect.peer-failed")
def test_every_gpu_copies_from_every_other(pairs: tuple[Pair, ...]) -> None:
    assert {pair.name: pair.error for pair in pairs if pair.error} == {}


@pytest.mark.finding("interconnect.peer-wrong-data")
def test_data_arrives_at_other_gpus_as_it_was(pairs: tuple[Pair, ...]) -> None:
    wrong = {pair.name: f"{pair.wrong_words} of {pair.words} words" for pair in pairs if pair.wrong_words}
    assert wrong == {}


@pytest.mark.finding("interconnect.collective-failed")
def test_an_all_reduce_over_all_gpus_ends(collective: Collective) -> None:
    assert collective.error == ""


@pytest.mark.finding("interconnect.collective-wrong-data")
def test_an_all_reduce_over_all_gpus_gives_the_sum(collective: Collective) -> None:
    assert {rank.rank: rank.wrong for rank in collective.ranks if rank.wrong} == {}


@pytest.fixture
def pairs(proof: Proof) -> tuple[Pair, ...]:
    """What was tried between GPUs; skips the test where there is only one."""
    if not proof.pairs:
        pytest.skip("no two GPUs that run a kernel")
    return proof.pairs


@pytest.fixture
def collective(proof: Proof) -> Collective:
    """The all-reduce; skips the test where it was not tried."""
    if not proof.collective:
        pytest.skip("needs two GPUs that reach each other, and an environment of the lock with torch (serve or train)")
    return proof.collective
