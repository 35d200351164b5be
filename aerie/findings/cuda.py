"""What differs in a host's CUDA toolkit."""

import re
from collections.abc import Collection, Iterator

from aerie.snapshot import Toolkit

from .case import Case, known, version
from .model import Finding, Fix

__all__ = ["judge"]

# Packages that bring a driver along: cuda, cuda-13-1, cuda-runtime-13-1.
META = re.compile(r"cuda(-runtime)?(-\d+-\d+)?")
SHOWN = 4


def judge(case: Case, causes: Collection[str]) -> Iterator[Finding]:
    """The findings of the layer cuda. causes: ids of findings of the layers before."""
    cuda, lock = case.snapshot.cuda, case.lock.cuda
    compilers = [toolkit for toolkit in cuda.toolkits if toolkit.nvcc is not None]
    mine = next((toolkit for toolkit in compilers if toolkit.path == lock.path), None)
    if not compilers:
        yield case.finding(
            "cuda.not-installed",
            seen="no toolkit with nvcc",
            expected=f"CUDA {lock.release} (nvcc {lock.nvcc}) at {lock.path}",
        )
    else:
        yield from _version(case, compilers, mine)
    # Where there is no toolkit at all, nvcc is not in the path for that reason.
    if mine and cuda.nvcc_in_path is None:
        yield case.finding("cuda.nvcc-not-in-path", seen="nvcc not found", expected=f"{lock.path}/bin/nvcc found")
    meta = [name for name in case.packages if META.fullmatch(name)]
    if meta:
        yield case.finding("cuda.metapackage-installed", seen=", ".join(meta), expected="toolkit packages only")
    if cuda.compat_in_ld_path is not None:
        yield case.finding("cuda.compat-in-path", seen=cuda.compat_in_ld_path, expected="the driver's own libcuda")
    yield from _jit(case, mine, causes)


def _version(case: Case, compilers: list[Toolkit], mine: Toolkit | None) -> Iterator[Finding]:
    lock = case.lock.cuda
    seen = []
    if mine is None:
        seen = [f"{one.version or 'CUDA'} (nvcc {one.nvcc}) at {one.path}" for one in compilers]
    elif mine.nvcc != lock.nvcc or mine.version not in (lock.release, None):
        seen = [f"{mine.version or 'CUDA'} (nvcc {mine.nvcc}) at {mine.path}"]
    if mine and lock.source == "apt" and known(case.snapshot.base.packages) is not None:
        there = {name: package.version for name, package in case.packages.items()}
        others = [
            f"{one.name} {there.get(one.name, 'absent')}" for one in lock.packages if there.get(one.name) != one.version
        ]
        seen += others[:SHOWN] + ([f"{len(others) - SHOWN} more packages"] if len(others) > SHOWN else [])
    if seen:
        yield case.finding(
            "cuda.version-mismatch",
            seen=", ".join(seen),
            expected=f"{lock.release} (nvcc {lock.nvcc}) at {lock.path}",
        )


def _jit(case: Case, mine: Toolkit | None, causes: Collection[str]) -> Iterator[Finding]:
    """A driver that is older than what this toolkit compiles for: a version check must refuse it already."""
    lock, driver = case.lock, case.snapshot.driver
    if mine is None or driver.loaded_version is None:
        return
    running = driver.loaded_version
    if known(driver.library_version) not in (None, running):
        return  # a library on a module of another version: CUDA does not start at all
    if version(running) >= version(lock.cuda.min_driver):
        return
    is_lock_too_old = version(lock.driver.version) < version(lock.cuda.min_driver)
    # One release back in the same branch is what driver.version-mismatch says already.
    is_branch = version(running)[0] < version(lock.cuda.min_driver)[0]
    if "driver.version-mismatch" in causes and not is_branch and not is_lock_too_old:
        return
    yield case.finding(
        "cuda.ptx-jit",
        seen=f"driver {running}, toolkit {mine.version or mine.nvcc}",
        expected=f"driver {lock.cuda.min_driver} or newer",
        fix=Fix.PERSON if is_lock_too_old else Fix.PROVISION,
        least=lock.cuda.min_driver,
    )
