"""The CUDA toolkit: the locked release, found by any shell, and a driver that runs what it compiles."""

import re

import pytest
from testinfra.host import Host as Connection

from aerie.lock import Lock
from aerie.snapshot import Snapshot
from tests.hosts.reading import Dotted, installed, known

pytestmark = pytest.mark.usefixtures("needs_gpus")

BRINGS_A_DRIVER = re.compile(r"cuda(-runtime)?(-\d+-\d+)?")


@pytest.fixture
def compilers(snapshot: Snapshot) -> dict[str, str]:
    """Full version of nvcc by the path of its toolkit; skips the test where there is none: cuda.not-installed."""
    found = {toolkit.path: toolkit.nvcc for toolkit in snapshot.cuda.toolkits if toolkit.nvcc}
    return found or pytest.skip("no toolkit with a compiler is installed")


@pytest.mark.finding("cuda.not-installed")
def test_a_toolkit_with_a_compiler_is_installed(snapshot: Snapshot) -> None:
    assert [toolkit.path for toolkit in snapshot.cuda.toolkits if toolkit.nvcc] != []


@pytest.mark.finding("cuda.version-mismatch")
def test_the_compiler_is_the_locked_one(compilers: dict[str, str], lock: Lock) -> None:
    mine = lock.cuda.path in compilers
    found = [f"{nvcc} at {path}" for path, nvcc in compilers.items() if path == lock.cuda.path or not mine]
    assert found == [f"{lock.cuda.nvcc} at {lock.cuda.path}"]


@pytest.mark.finding("cuda.version-mismatch")
def test_every_package_of_the_toolkit_is_the_locked_one(
    snapshot: Snapshot, compilers: dict[str, str], lock: Lock
) -> None:
    if lock.cuda.source != "apt":
        pytest.skip("the toolkit comes from wheels")
    there, wanted = installed(known(snapshot.base.packages)), {one.name: one.version for one in lock.cuda.packages}
    assert {name: there.get(name, "absent") for name in wanted} == wanted


@pytest.mark.finding("cuda.nvcc-not-in-path")
def test_a_shell_without_login_finds_the_compiler(snapshot: Snapshot, compilers: dict[str, str], lock: Lock) -> None:
    if lock.cuda.path not in compilers:
        pytest.skip("the locked toolkit is not installed")
    assert snapshot.cuda.nvcc_in_path is not None


@pytest.mark.finding("cuda.nvcc-not-in-path")
def test_nvcc_answers_to_a_bare_command(host: Connection, compilers: dict[str, str], lock: Lock) -> None:
    if lock.cuda.path not in compilers:
        pytest.skip("the locked toolkit is not installed")
    answer = host.run("nvcc --version")
    found = re.search(r"V(\d+\.\d+\.\d+)", answer.stdout)
    assert (found[1] if found else answer.stderr.strip()) == compilers[lock.cuda.path]


@pytest.mark.finding("cuda.metapackage-installed")
def test_no_package_that_moves_the_driver_is_installed(snapshot: Snapshot) -> None:
    names = installed(known(snapshot.base.packages))
    assert [name for name in names if BRINGS_A_DRIVER.fullmatch(name)] == []


@pytest.mark.finding("cuda.compat-in-path")
def test_no_libcuda_stands_before_the_one_of_the_driver(snapshot: Snapshot) -> None:
    assert snapshot.cuda.compat_in_ld_path is None


@pytest.mark.finding("cuda.ptx-jit")
def test_the_driver_runs_what_the_toolkit_compiles(snapshot: Snapshot, compilers: dict[str, str], lock: Lock) -> None:
    loaded, least = snapshot.driver.loaded_version, lock.cuda.min_driver
    if loaded is None or lock.cuda.path not in compilers:
        pytest.skip("no driver is loaded, or the locked toolkit is not installed")
    if snapshot.driver.library_version not in (None, loaded):
        pytest.skip("the driver's library is of another version, so CUDA does not start: driver.version-mismatch")
    if loaded != lock.driver.version and loaded.split(".")[0] == least.split(".")[0]:
        pytest.skip("the driver is of the right branch, and driver.version-mismatch tells of its version")
    assert Dotted(loaded) >= Dotted(least)
