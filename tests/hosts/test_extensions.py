"""The CUDA extensions of a host's environments: the lock's, with code for its GPUs; with --deep, at work on each."""

import pytest

from aerie.extensions import contents
from aerie.extensions.onhost.evidence import Proof
from aerie.lock import Lock
from aerie.snapshot import Gpu, InstalledExtension, Snapshot
from aerie.verify import Case
from tests.hosts.reading import installed, known

pytestmark = pytest.mark.usefixtures("needs_gpus")

PROOFS: dict[tuple[str, str], Proof] = {}  # by host and package: an import of torch and a launch on every GPU each


@pytest.fixture
def there(snapshot: Snapshot, lock: Lock) -> dict[str, InstalledExtension]:
    """By name, the extensions of the lock that are in their environments."""
    homes = {one.name: one.environment for one in lock.extensions.packages}
    return {one.package: one for one in snapshot.extensions.installed if homes.get(one.package) == one.environment}


@pytest.fixture
def right(there: dict[str, InstalledExtension], lock: Lock) -> dict[str, InstalledExtension]:
    """Those of the lock's version."""
    versions = {one.name: one.version for one in lock.extensions.packages}
    return {name: one for name, one in there.items() if contents.is_version(one.version, versions[name])}


@pytest.fixture
def read(right: dict[str, InstalledExtension]) -> dict[str, InstalledExtension]:
    """Of those, the ones that are what was installed and read."""
    return {name: one for name, one in right.items() if one.wheel_sha256 and not one.changed}


@pytest.fixture
def lacking(read: dict[str, InstalledExtension], snapshot: Snapshot, lock: Lock) -> dict[str, list[str]]:
    """By package, what its libraries lack for the host's GPUs."""
    unused = {one.name: one.unused for one in lock.extensions.packages}
    able = sorted({one.compute_capability for one in known(snapshot.gpus) if not one.error}) if read else []
    held = {name: contents.parse({"libraries": one.libraries, "torch": ""}) for name, one in read.items()}
    return {name: list(contents.against(one, able, unused[name])) for name, one in held.items() if able}


@pytest.fixture
def built_here(lock: Lock) -> list[str]:
    """Names of the required packages that may have to be built; skips the test where there is none."""
    packages = [one for one in lock.extensions.packages if one.name in lock.extensions.required]
    found = [one.name for one in packages if one.source and one.from_ != "wheel"]
    return found or pytest.skip("the lock requires nothing that has to be built")


@pytest.mark.finding("extensions.tools-missing")
def test_what_a_build_needs_is_installed(snapshot: Snapshot, lock: Lock, built_here: list[str]) -> None:
    assert sorted(set(lock.extensions.tools) - set(installed(known(snapshot.base.packages)))) == []


@pytest.mark.finding("extensions.not-installed")
def test_every_required_extension_is_installed(there: dict[str, InstalledExtension], lock: Lock) -> None:
    assert [name for name in lock.extensions.required if name not in there] == []


@pytest.mark.finding("extensions.version-mismatch")
def test_every_extension_has_the_locked_version(
    there: dict[str, InstalledExtension], right: dict[str, InstalledExtension]
) -> None:
    assert {name: one.version for name, one in there.items() if name not in right} == {}


@pytest.mark.finding("extensions.changed")
def test_every_library_is_the_one_that_was_installed_and_read(
    right: dict[str, InstalledExtension], read: dict[str, InstalledExtension]
) -> None:
    assert {name: one.changed or "never read" for name, one in right.items() if name not in read} == {}


@pytest.mark.finding("extensions.other-torch")
def test_every_extension_is_built_for_the_torch_of_its_environment(
    read: dict[str, InstalledExtension], snapshot: Snapshot
) -> None:
    torches = {name: known(one).version for name, one in snapshot.extensions.torch.items()}
    wanted = {name: torches[one.environment] for name, one in read.items() if one.environment in torches}
    assert {name: read[name].torch for name in wanted} == wanted


@pytest.mark.finding("extensions.no-device-code")
def test_every_library_has_code_for_the_gpus(lacking: dict[str, list[str]]) -> None:
    found = {name: [words for words in all_ if "only PTX" not in words] for name, all_ in lacking.items()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.finding("extensions.ptx-only")
def test_no_library_waits_for_the_driver_to_compile_it(lacking: dict[str, list[str]]) -> None:
    found = {name: [words for words in all_ if "only PTX" in words] for name, all_ in lacking.items()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.finding("extensions.compiler-mismatch")
def test_the_compiler_is_of_torchs_major_version(snapshot: Snapshot, lock: Lock, built_here: list[str]) -> None:
    nvcc = [one.nvcc for one in snapshot.cuda.toolkits if one.path == lock.cuda.path and one.nvcc]
    homes = {one.environment for one in lock.extensions.packages if one.name in built_here}
    cudas = {name: known(one).cuda for name, one in snapshot.extensions.torch.items() if name in homes}
    of_torch = {name: cuda.split(".")[0] for name, cuda in cudas.items() if cuda and nvcc}
    assert {name: major for name, major in of_torch.items() if major != nvcc[0].split(".")[0]} == {}


@pytest.mark.finding("extensions.store-damaged")
def test_every_wheel_in_the_store_is_that_of_its_receipt(snapshot: Snapshot) -> None:
    store = snapshot.extensions.store
    assert {one.name or digest: one.damage for digest, one in store.items() if one.damage} == {}


@pytest.fixture
def proofs(needs_gpus: None, case: Case, gpus: tuple[Gpu, ...]) -> dict[str, Proof]:
    """By package that the lock requires, what it did on the host's GPUs; skips the test where that is not tried."""
    if not case.is_live:
        pytest.skip("asks the host itself, and this is a recorded snapshot")
    if not case.is_deep:
        pytest.skip("runs kernels on the GPUs: only with --deep")
    from aerie.extensions import proof  # here, for it brings the controller's ssh client along

    there = {(one.environment, one.package) for one in case.snapshot.extensions.installed}
    required = [one for one in case.lock.extensions.packages if one.name in case.lock.extensions.required]
    wanted = [
        one for one in required if (one.environment, one.name) in there
    ]  # extensions.not-installed tells the rest
    for one in wanted:
        if (case.host.name, one.name) not in PROOFS:
            python = f"/opt/aerie/environments/{one.environment}/bin/python"
            PROOFS[case.host.name, one.name] = proof.prove(case.host, package=one.name, python=python, gpus=gpus)
    return {one.name: PROOFS[case.host.name, one.name] for one in wanted}


def of(proofs: dict[str, Proof], *findings: str) -> dict[str, str]:
    """What the proofs hold against the packages, of these findings."""
    found = {
        name: "; ".join(one.seen for one in proof.shortfalls if one.finding in findings)
        for name, proof in proofs.items()
    }
    return {name: seen for name, seen in found.items() if seen}


@pytest.mark.finding("extensions.import-failed")
def test_every_extension_imports_in_a_fresh_process(proofs: dict[str, Proof]) -> None:
    assert of(proofs, "extensions.import-failed") == {}


@pytest.mark.finding("extensions.kernel-failed")
def test_the_kernels_of_every_extension_run_on_every_gpu(proofs: dict[str, Proof]) -> None:
    assert of(proofs, "extensions.kernel-failed") == {}


@pytest.mark.finding("extensions.wrong-result")
def test_the_kernels_of_every_extension_agree_with_plain_torch(proofs: dict[str, Proof]) -> None:
    assert of(proofs, "extensions.wrong-result") == {}
