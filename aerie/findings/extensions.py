"""What differs in the CUDA extensions of a host's environments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aerie.extensions import contents
from aerie.extensions.contents import Contents
from aerie.lock import Extension
from aerie.snapshot import InstalledExtension

from .case import Case, known
from .model import Finding, Severity

__all__ = ["judge"]

SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """An extension of the lock on this host. there: what its environment has; torch: the environment's, "" unknown."""

    package: Extension
    is_required: bool
    there: InstalledExtension | None
    torch: str
    capabilities: tuple[str, ...]


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer extensions. A package that is there and not required counts as a warning."""
    yield from _tools(case)
    pairs = list(_pairs(case))
    judges: tuple[tuple[str, Callable[[_Pair], str], str], ...] = (
        ("extensions.not-installed", _absent, "installed"),
        ("extensions.version-mismatch", _other_version, "the lock's version"),
        ("extensions.changed", _changed, "the libraries that were installed and read"),
        ("extensions.other-torch", _other_torch, "built for the environment's torch"),
        ("extensions.no-device-code", _no_code, "device code for the host's GPUs"),
        ("extensions.ptx-only", _ptx_only, "device code that runs as it is"),
    )
    for id_, seen, expected in judges:
        found = [(pair, words) for pair in pairs if (words := seen(pair))]
        if found:
            yield case.finding(
                id_,
                seen="; ".join(f"{pair.package.name}: {words}" for pair, words in found),
                expected=expected,
                severity=None if any(pair.is_required for pair, _ in found) else Severity.WARN,
                package=found[0][0].package.name,
            )
    yield from _compiler(case)
    damaged = {one.name or digest[:12]: one.damage for digest, one in case.snapshot.extensions.store.items()}
    if told := [f"{name}: {damage}" for name, damage in damaged.items() if damage]:
        yield case.finding("extensions.store-damaged", seen="; ".join(told), expected="the wheels of their receipts")


def _pairs(case: Case) -> Iterator[_Pair]:
    lock, snapshot = case.lock.extensions, case.snapshot
    there = {(one.environment, one.package): one for one in snapshot.extensions.installed}
    gpus = known(snapshot.gpus) or ()
    capabilities = tuple(sorted({gpu.compute_capability for gpu in gpus if gpu.error is None}))
    for package in lock.packages:
        if package.name not in lock.required and (package.environment, package.name) not in there:
            continue
        torch = snapshot.extensions.torch.get(package.environment)
        version = known(torch) if torch else None
        yield _Pair(
            package=package,
            is_required=package.name in lock.required,
            there=there.get((package.environment, package.name)),
            torch=version.version if version else "",
            capabilities=capabilities,
        )


def _can_build(case: Case) -> list[Extension]:
    """The required packages that may have to be built."""
    lock = case.lock.extensions
    return [one for one in lock.packages if one.name in lock.required and one.source and one.from_ != "wheel"]


def _tools(case: Case) -> Iterator[Finding]:
    wanted = case.lock.extensions.tools
    if not _can_build(case) or known(case.snapshot.base.packages) is None:
        return
    if missing := [name for name in wanted if name not in case.packages]:
        yield case.finding(
            "extensions.tools-missing", seen=f"without {', '.join(missing)}", expected=", ".join(wanted)
        )  # fmt: skip


def _compiler(case: Case) -> Iterator[Finding]:
    lock, snapshot = case.lock, case.snapshot
    nvcc = next((one.nvcc for one in snapshot.cuda.toolkits if one.path == lock.cuda.path), None)
    seen = {}
    for package in _can_build(case):
        told = snapshot.extensions.torch.get(package.environment)
        torch = known(told) if told else None
        if nvcc and torch and torch.cuda and torch.cuda.split(".")[0] != nvcc.split(".")[0]:
            seen[package.environment] = f"torch {torch.version} with CUDA {torch.cuda} in {package.environment}"
    if seen:
        yield case.finding(
            "extensions.compiler-mismatch",
            seen=f"nvcc {nvcc}, {', '.join(seen.values())}",
            expected="one major version of CUDA",
        )


def _absent(pair: _Pair) -> str:
    return "" if pair.there else f"nothing in environment {pair.package.environment}"


def _other_version(pair: _Pair) -> str:
    there = pair.there
    if there is None or contents.is_version(there.version, pair.package.version):
        return ""
    return f"{there.version}, the lock has {pair.package.version}"


def _right(pair: _Pair) -> InstalledExtension | None:
    """What is installed, where it is the lock's version: else there is nothing else to say of it."""
    return pair.there if pair.there and not _other_version(pair) else None


def _changed(pair: _Pair) -> str:
    there = _right(pair)
    if there is None:
        return ""
    if there.wheel_sha256 is None:
        return "installed by other hands, never looked into"
    names = there.changed
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more} written or gone since" if names else ""


def _known(pair: _Pair) -> InstalledExtension | None:
    """What is installed, where its record is still about it."""
    there = _right(pair)
    return there if there and not _changed(pair) else None


def _other_torch(pair: _Pair) -> str:
    there = _known(pair)
    if there is None or not pair.torch or there.torch == pair.torch:
        return ""
    return f"built for torch {there.torch}, the environment has {pair.torch}"


def _no_code(pair: _Pair) -> str:
    return _lacks(pair, "has no code")


def _ptx_only(pair: _Pair) -> str:
    return "" if _no_code(pair) else _lacks(pair, "has only PTX")


def _lacks(pair: _Pair, what: str) -> str:
    there = _known(pair)
    if there is None or not pair.capabilities:
        return ""
    groups = {name: rows for name, rows in there.libraries.items() if rows}
    held = contents.parse({"libraries": groups, "torch": ""})
    problems = contents.against(Contents(libraries=held.libraries), pair.capabilities, pair.package.unused)
    return "; ".join(one for one in problems if ("only PTX" in one) == ("PTX" in what))
