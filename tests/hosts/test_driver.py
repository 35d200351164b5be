"""The NVIDIA driver: of one version, flavour and origin, there after a reboot; and what it says of each GPU."""

import re

import pytest
from testinfra.host import Host as Connection

from aerie.gpus.proof import Proof
from aerie.inventory import Gpus
from aerie.lock import Lock
from aerie.snapshot import Gpu, PciGpu, Snapshot, Unknown
from tests.hosts.reading import (
    driver_packages,
    installed,
    is_lost,
    known,
    lost_bus_ids,
    named,
    needs_driver,
    offenders,
    short_bus_id,
    those,
    upstream,
)

pytestmark = pytest.mark.usefixtures("needs_gpus")

EXPLAINED = {"9": "not loaded", "12": "no library", "18": "library and module differ"}  # NVML's codes
SWITCHED = re.compile(r"SXM|HBM3|H200|[BG]B?[23]00")  # names of GPUs behind NVSwitch, which needs a fabric manager
# Of NVML's reasons for lower clocks those that no healthy card has; a power cap under load is not one.
SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
CHANGES = {(True, False): "goes off at the next boot", (False, True): "goes on at the next boot"}
RECOVERIES = {1: "GPU reset", 2: "host reboot", 3: "drain P2P", 4: "drain and reset"}  # NVML field 230
APPLICATIONS_OWN = {13, 31, 43, 45, 63, 92, 94}  # Xids that a program causes or that only note something


@pytest.mark.finding("driver.not-installed")
def test_a_driver_is_installed_from_packages(snapshot: Snapshot, lock: Lock) -> None:
    if snapshot.driver.runfile or snapshot.driver.loaded_version not in (None, lock.driver.version):
        pytest.skip("another driver is there: other requirements say so")
    assert list(driver_packages(snapshot)) != []


@pytest.mark.finding("driver.not-loaded")
def test_the_driver_is_loaded(snapshot: Snapshot, lock: Lock) -> None:
    needs_driver(snapshot)
    if set(lock.kernel.blacklist) & set(snapshot.kernel.loaded_modules) or snapshot.kernel.secure_boot is True:
        pytest.skip("another module holds the GPUs, or Secure Boot keeps it out: requirements of the kernel say so")
    if snapshot.kernel.release not in known(snapshot.driver.modules):
        pytest.skip(f"no module is built for {snapshot.kernel.release}")
    assert snapshot.driver.loaded_version is not None


@pytest.mark.finding("driver.version-mismatch")
def test_packages_library_and_loaded_module_are_the_locked_version(snapshot: Snapshot, lock: Lock) -> None:
    needs_driver(snapshot)
    packages = sorted({upstream(version) for version in driver_packages(snapshot).values()})
    places = {"library": known(snapshot.driver.library_version), "loaded module": snapshot.driver.loaded_version}
    versions = {"package": " and ".join(packages), **places}
    there = {place: version for place, version in versions.items() if version}
    assert there == dict.fromkeys(there, lock.driver.version)


@pytest.mark.finding("driver.closed-module")
def test_every_module_is_of_the_locked_flavour(snapshot: Snapshot, lock: Lock) -> None:
    modules = known(snapshot.driver.modules)
    flavours = {release: "closed" if one.license == "NVIDIA" else "open" for release, one in modules.items()}
    flavours["loaded"] = snapshot.driver.loaded_flavour or lock.driver.flavour
    assert flavours == dict.fromkeys(flavours, lock.driver.flavour)


@pytest.mark.finding("driver.runfile")
def test_no_driver_was_installed_past_the_package_manager(snapshot: Snapshot) -> None:
    assert snapshot.driver.runfile is None


@pytest.mark.finding("driver.mixed-flavours")
def test_modules_of_one_flavour_only_are_installed(snapshot: Snapshot) -> None:
    flavours: dict[str, list[str]] = {"open": [], "closed": []}
    for name in driver_packages(snapshot):
        if re.search(r"nvidia-(dkms|open|kernel-(open-)?dkms)|cuda-drivers|linux-modules-nvidia", name):
            flavours["open" if "open" in name else "closed"].append(name)
    assert min(flavours.values(), key=len) == []


@pytest.mark.finding("driver.mixed-origins")
def test_all_driver_packages_have_one_maintainer(snapshot: Snapshot) -> None:
    packages = known(snapshot.base.packages)
    maintainers = {name: packages[name].maintainer.rpartition("@")[2].rstrip(">") for name in driver_packages(snapshot)}
    commonest = max(maintainers.values(), key=list(maintainers.values()).count, default="")
    assert {name: one for name, one in maintainers.items() if one != commonest} == {}


@pytest.mark.finding("driver.pin-missing")
def test_apt_is_held_to_the_locked_version(snapshot: Snapshot) -> None:
    if not driver_packages(snapshot):
        pytest.skip("no driver is installed from packages")
    assert list(snapshot.driver.pin_files) != []


@pytest.mark.finding("driver.module-missing")
def test_the_kernel_that_boots_next_has_a_module(snapshot: Snapshot) -> None:
    if not driver_packages(snapshot):
        pytest.skip("no driver is installed from packages")
    assert known(snapshot.kernel.next_release) in list(known(snapshot.driver.modules))


@pytest.mark.finding("driver.initramfs-stale")
def test_the_initramfs_carries_no_other_version(snapshot: Snapshot, lock: Lock) -> None:
    carried = known(snapshot.driver.initramfs_version)
    if carried is None:
        pytest.skip("it carries no module of the driver")
    assert carried == lock.driver.version


@pytest.mark.finding("driver.repository-missing")
def test_the_locked_repository_is_a_source_of_apt(snapshot: Snapshot, lock: Lock) -> None:
    if not driver_packages(snapshot) or any("/cuda/repos/" in uri for uri in _others(snapshot, lock)):
        pytest.skip("no driver is installed from packages, or from another tree of the repository")
    sources = [source.uri.rstrip("/") for source in known(snapshot.base.apt_sources)]
    assert lock.driver.repository.uri.rstrip("/") in sources


@pytest.mark.finding("driver.repository-wrong")
def test_no_other_tree_or_key_of_the_repository_is_used(snapshot: Snapshot, lock: Lock) -> None:
    assert _others(snapshot, lock) == {}


@pytest.mark.finding("driver.fabricmanager-present")
def test_no_fabric_manager_is_installed_where_no_switch_is(snapshot: Snapshot) -> None:
    if isinstance(snapshot.gpus, tuple) and any(SWITCHED.search(gpu.name) for gpu in snapshot.gpus):
        pytest.skip("these GPUs are behind NVSwitch")
    assert [name for name in installed(known(snapshot.base.packages)) if "fabricmanager" in name] == []


@pytest.mark.finding("driver.persistence-off")
def test_the_persistence_daemon_runs_and_starts_at_boot(host: Connection, snapshot: Snapshot, lock: Lock) -> None:
    if not lock.driver.persistence or snapshot.driver.loaded_version is None or snapshot.machine.init != "systemd":
        pytest.skip("the lock wants no persistence, no driver is loaded, or the host has no systemd")
    shown = host.check_output("systemctl show --property=ActiveState,UnitFileState nvidia-persistenced")
    state = dict(line.split("=", 1) for line in shown.splitlines())
    assert state["ActiveState"] == "active"
    assert state["UnitFileState"] in ("enabled", "static")


@pytest.mark.finding("driver.uvm-hmm")
def test_the_memory_module_is_loaded_without_hmm(snapshot: Snapshot, lock: Lock) -> None:
    if not lock.driver.uvm_disable_hmm or snapshot.driver.uvm_disable_hmm is None:
        pytest.skip("the lock leaves it to the driver, or nvidia_uvm is not loaded")
    assert snapshot.driver.uvm_disable_hmm is True


@pytest.mark.finding("driver.uvm-hmm")
def test_the_memory_module_will_be_loaded_without_hmm(snapshot: Snapshot, lock: Lock) -> None:
    needs_driver(snapshot)
    if not lock.driver.uvm_disable_hmm:
        pytest.skip("the lock leaves it to the driver")
    options = snapshot.driver.modprobe_options.get("nvidia_uvm", "no options")
    assert next((one for one in options.split() if "hmm" in one), options) == "uvm_disable_hmm=1"


@pytest.mark.finding("driver.nvml-failed")
def test_nvml_answers(snapshot: Snapshot, lock: Lock) -> None:
    if snapshot.driver.loaded_flavour not in (None, lock.driver.flavour):
        pytest.skip("the loaded module is of another flavour: driver.closed-module")
    code = (snapshot.driver.nvml_error or "").partition(" ")[0]
    if code in EXPLAINED:
        pytest.skip(f"{EXPLAINED[code]}: another requirement says so")
    assert snapshot.driver.nvml_error is None


@pytest.mark.finding("driver.gpu-missing")
def test_nvml_shows_every_gpu_on_the_bus(
    snapshot: Snapshot, gpus: tuple[Gpu, ...], pci_gpus: tuple[PciGpu, ...]
) -> None:
    if snapshot.driver.loaded_flavour == "closed":
        pytest.skip("the closed module is loaded: driver.closed-module")
    shown = lost_bus_ids(snapshot) | {short_bus_id(gpu.bus_id) for gpu in gpus if gpu.bus_id}
    assert sorted({short_bus_id(gpu.bus_id) for gpu in pci_gpus} - shown) == []


@pytest.mark.finding("driver.gpu-lost")
def test_no_gpu_has_fallen_off_the_bus(gpus: tuple[Gpu, ...]) -> None:
    assert [named(gpu) for gpu in gpus if is_lost(gpu)] == []


@pytest.mark.finding("driver.persistence-off")
def test_every_gpu_stays_initialized_without_clients(gpus: tuple[Gpu, ...], lock: Lock) -> None:
    if not lock.driver.persistence:
        pytest.skip("the lock wants no persistence")
    assert those(gpus, "persistence", False) == []


@pytest.mark.finding("driver.uvm-hmm")
def test_no_gpu_shares_the_address_space_of_the_host(gpus: tuple[Gpu, ...], lock: Lock) -> None:
    if not lock.driver.uvm_disable_hmm:
        pytest.skip("the lock leaves it to the driver")
    assert offenders(gpus, "addressing_mode", lambda mode: mode == "hmm") == {}


@pytest.mark.finding("driver.ecc-off")
def test_every_gpu_corrects_its_memory(gpus: tuple[Gpu, ...]) -> None:
    assert those([gpu for gpu in gpus if gpu.ecc_pending is not True], "ecc", False) == []


@pytest.mark.finding("driver.ecc-pending")
def test_no_gpu_waits_for_a_change_of_ecc(gpus: tuple[Gpu, ...]) -> None:
    modes = {named(gpu): (gpu.ecc, gpu.ecc_pending) for gpu in gpus}
    assert {gpu: CHANGES[mode] for gpu, mode in modes.items() if mode in CHANGES} == {}


@pytest.mark.finding("driver.ecc-errors")
def test_no_gpu_has_uncorrected_memory_errors(gpus: tuple[Gpu, ...]) -> None:
    assert offenders(gpus, "ecc_uncorrected", lambda count: count > 0) == {}


@pytest.mark.finding("driver.remap-pending")
def test_no_gpu_waits_to_remap_a_row(gpus: tuple[Gpu, ...]) -> None:
    assert those([gpu for gpu in gpus if gpu.remap_failed is not True], "remap_pending", True) == []


@pytest.mark.finding("driver.remap-failed")
def test_no_gpu_failed_to_remap_a_row(gpus: tuple[Gpu, ...]) -> None:
    assert those(gpus, "remap_failed", True) == []


@pytest.mark.finding("driver.mig-on")
def test_no_gpu_is_cut_into_instances(gpus: tuple[Gpu, ...]) -> None:
    assert those(gpus, "mig", True) == []


@pytest.mark.finding("driver.mig-on")
def test_no_gpu_will_be_cut_into_instances(gpus: tuple[Gpu, ...]) -> None:
    assert those(gpus, "mig_pending", True) == []


@pytest.mark.finding("driver.recovery-needed")
def test_no_gpu_asks_for_recovery(gpus: tuple[Gpu, ...]) -> None:
    asked = offenders(gpus, "recovery_action", lambda action: action != 0)
    assert {gpu: RECOVERIES.get(action, action) for gpu, action in asked.items()} == {}


@pytest.mark.finding("driver.power-limit")
def test_every_gpu_may_draw_its_power(gpus: tuple[Gpu, ...], expected_gpus: Gpus) -> None:
    limits = {named(gpu): (gpu.power_limit_mw, gpu.power_limit_default_mw) for gpu in gpus}
    known_ones = {gpu: pair for gpu, pair in limits.items() if isinstance(pair[0], int) and isinstance(pair[1], int)}
    watts = expected_gpus.power_limit_w
    if watts is not None:
        assert {gpu: f"{mw / 1000:g} W" for gpu, (mw, _) in known_ones.items() if mw != watts * 1000} == {}
    else:
        assert {gpu: f"{mw / 1000:g} W" for gpu, (mw, own) in known_ones.items() if mw < own} == {}


@pytest.mark.finding("driver.throttled")
def test_no_gpu_is_slowed_by_heat_or_want_of_power(gpus: tuple[Gpu, ...]) -> None:
    slowed = offenders(gpus, "clock_event_reasons", lambda mask: mask & sum(SLOWDOWNS))
    assert {gpu: [word for bit, word in SLOWDOWNS.items() if mask & bit] for gpu, mask in slowed.items()} == {}


@pytest.mark.finding("driver.xid")
def test_no_gpu_reported_a_fault_since_boot(snapshot: Snapshot) -> None:
    if snapshot.driver.loaded_flavour == "closed":
        pytest.skip("the closed module is loaded: driver.closed-module")
    gpus = snapshot.gpus if isinstance(snapshot.gpus, tuple) else ()
    # A lost card and one that asks for recovery are told of by NVML, with what to do.
    explained = {
        short_bus_id(gpu.bus_id)
        for gpu in gpus
        if gpu.bus_id and isinstance(gpu.recovery_action, int) and gpu.recovery_action
    }
    explained |= lost_bus_ids(snapshot)
    faults = [xid for xid in known(snapshot.xids) if xid.code not in APPLICATIONS_OWN]
    assert [f"Xid {one.code} on {one.bus_id}" for one in faults if short_bus_id(one.bus_id) not in explained] == []


def _others(snapshot: Snapshot, lock: Lock) -> dict[str, str]:
    """Sources of NVIDIA's driver that are not the lock's, or have not its key: address and keys."""
    wanted, found = lock.driver.repository, {}
    for source in known(snapshot.base.apt_sources):
        keys = () if isinstance(source.fingerprints, Unknown) else source.fingerprints
        is_locked = source.uri.rstrip("/") == wanted.uri.rstrip("/")
        if (is_locked and wanted.key_fingerprint not in keys) or (not is_locked and "/cuda/repos/" in source.uri):
            found[source.uri] = ", ".join(keys)
    return found


@pytest.mark.finding("driver.kernel-failed")
def test_every_gpu_runs_a_kernel(proof: Proof, expected_gpus: Gpus) -> None:
    assert proof.start_error == ""
    assert {proof.name(gpu.index): gpu.error for gpu in proof.gpus if gpu.error} == {}
    assert len(proof.gpus) >= expected_gpus.count


@pytest.mark.finding("driver.wrong-data")
def test_every_gpu_writes_what_it_is_told_to(proof: Proof) -> None:
    assert {proof.name(gpu.index): gpu.fault for gpu in proof.gpus if gpu.wrong_words} == {}
