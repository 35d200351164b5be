"""Does a prebuilt wheel fit an environment, as far as its name tells: Python, platform, CUDA, torch and C++ ABI.

Wheels of CUDA extensions say what they were built with in their local version, each project in its own way:

    flash_attn-2.8.3+cu13torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64.whl       CUDA 13.x, torch 2.11, C++11 ABI
    flash_attn-2.8.3+cu130torch2.11-cp312-cp312-manylinux_2_34_aarch64.whl        CUDA 13.0, torch 2.11
    sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl                   CUDA 13.0
    sglang_kernel-0.4.10-cp310-abi3-manylinux2014_x86_64.whl                      nothing

A name is a promise: what is really inside (device code, libraries that are linked) is read from the wheel itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

__all__ = ["Match", "Subject", "Target", "match"]

Subject = Literal["cuda", "torch", "cxx11_abi"]

# After normalisation: lower case, "." between parts. Two digits of CUDA are its major version, three have a minor one.
_CUDA = re.compile(r"(?:^|\.)cu(\d{2})(\d?)(?=\D|$)")
_TORCH = re.compile(r"torch(\d+(?:\.\d+)+)")
_ABI = re.compile(r"cxx11abi(true|false)")
# PEP 600: glibc of the old names.
_OLD_NAMES = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST_GLIBC = {"x86_64": 5}  # every other machine came with 2.17


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The environment that a wheel is for. python: "3.12" or "3.13t"; torch: as it says itself, "2.14.1+cu130".

    cuda: the version that torch brings, "13.0"; cxx11_abi: torch's; machine: as uname says; glibc: (2, 39).
    """

    python: str
    torch: str
    cuda: str
    cxx11_abi: bool
    machine: str
    glibc: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """fits: nothing in the name speaks against the wheel. reasons: all that does, one sentence each.

    unsaid: what the name is silent about, to be read from the wheel's metadata and libraries.
    """

    fits: bool
    reasons: tuple[str, ...]
    unsaid: tuple[Subject, ...]


def match(filename: str, target: Target) -> Match:
    """Judge a wheel by its name, percent-encoded ("%2Bcu130") or not; what is no wheel's name does not fit."""
    try:
        _, version, _, tags = parse_wheel_filename(unquote(filename))
    except InvalidWheelFilename as error:
        return Match(fits=False, reasons=(f"not the name of a wheel: {error}",), unsaid=())
    local = version.local or ""
    said = {"cuda": _CUDA.search(local), "torch": _TORCH.search(local), "cxx11_abi": _ABI.search(local)}
    reasons = (*_tag_reasons(tags, target), *_cuda(said["cuda"], target), *_torch(said["torch"], target))
    reasons += tuple(_abi(said["cxx11_abi"], target))
    unsaid: tuple[Subject, ...] = tuple(subject for subject in ("cuda", "torch", "cxx11_abi") if said[subject] is None)
    return Match(fits=not reasons, reasons=reasons, unsaid=unsaid)


def _tag_reasons(tags: frozenset[Tag], target: Target) -> Iterator[str]:
    supported = _supported(target)
    if tags & supported:
        return
    pythons = {(tag.interpreter, tag.abi) for tag in supported}
    fits_python = any((tag.interpreter, tag.abi) in pythons for tag in tags)
    if not fits_python:
        named = ", ".join(sorted({f"{tag.interpreter}-{tag.abi}" for tag in tags}))
        yield f"for Python {named}, the environment has {target.python}"
    platforms = {tag.platform for tag in supported}
    fits_platform = any(tag.platform in platforms for tag in tags)
    if not fits_platform:
        named = ", ".join(sorted({tag.platform for tag in tags}))
        glibc = ".".join(map(str, target.glibc))
        yield f"for {named}, the host is linux {target.machine} with glibc {glibc}"
    if fits_python and fits_platform:
        yield f"no tag fits Python {target.python} and linux {target.machine} together"


@lru_cache(maxsize=16)  # 1,000 tags and more, the same for every wheel of an index
def _supported(target: Target) -> frozenset[Tag]:
    """What pip on the target would install; packaging.tags.sys_tags() answers for this process only."""
    is_threaded = target.python.endswith("t")
    major, minor = (int(part) for part in target.python.removesuffix("t").split("."))
    abi = f"cp{major}{minor}{'t' * is_threaded}"
    platforms = list(_platforms(target))
    own = cpython_tags((major, minor), abis=[abi], platforms=platforms)
    others = compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)
    return frozenset((*own, *others))


def _platforms(target: Target) -> Iterator[str]:
    major, newest = target.glibc
    for minor in range(newest, _OLDEST_GLIBC.get(target.machine, 17) - 1, -1):
        yield f"manylinux_{major}_{minor}_{target.machine}"
        if (major, minor) in _OLD_NAMES:
            yield f"{_OLD_NAMES[major, minor]}_{target.machine}"
    yield f"linux_{target.machine}"


def _cuda(said: re.Match[str] | None, target: Target) -> Iterator[str]:
    if said is None:
        return
    has = Version(target.cuda)
    major, minor = int(said[1]), int(said[2]) if said[2] else None
    built = f"built with CUDA {major}" if minor is None else f"built with CUDA {major}.{minor}"
    if major != has.major:
        yield f"{built}, torch brings {target.cuda}"
    elif minor is not None and minor > has.minor:
        # Within a major version a library runs with a newer runtime; an older one may lack what it calls.
        yield f"{built}, newer than {target.cuda} that torch brings"


def _torch(said: re.Match[str] | None, target: Target) -> Iterator[str]:
    if said is None:
        return
    # Its C++ interface changes with every minor version; a wheel that names a patch version was built with that one.
    wanted = Version(said[1]).release
    if Version(target.torch).release[: len(wanted)] != wanted:
        yield f"built with torch {said[1]}, the environment has {target.torch}"


def _abi(said: re.Match[str] | None, target: Target) -> Iterator[str]:
    if said is not None and (said[1] == "true") != target.cxx11_abi:
        names = {True: "C++11 ABI", False: "the C++ ABI before C++11"}
        yield f"built for {names[said[1] == 'true']}, torch has {names[target.cxx11_abi]}"
