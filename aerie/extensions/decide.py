"""Whether an extension is there already, comes as a wheel, or has to be built: a pure function of what was read.

Wheels are asked in order: those of the stores, which were made or read before, then those of the lock. The first that
fits is taken. A wheel of the lock that nobody has read yet is taken on trust of its name until the host has read it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from aerie.lock import Extension

from . import contents, wheels
from .build_key import BuildKey
from .contents import Contents
from .sizing import Sizing
from .wheels import Target

__all__ = ["Action", "Build", "Candidate", "Decision", "Estimate", "Installed", "decide"]


class Action(StrEnum):
    """What is to be done for one package on one host."""

    NOTHING = "nothing"
    INSTALL = "install"
    BUILD = "build"
    AFTER = "after"  # install what another host of the same plan builds
    REFUSED = "refused"  # nothing can be done before a person acted


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A wheel that could be installed. digest: its place in a store; where: whose it is, in words.

    contents: what was read in it, None while nobody has read it; key: of its build, None where it was not built here.
    """

    name: str
    digest: str
    where: str
    contents: Contents | None = None
    key: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What the environment has. torch: that it was installed for, "" where this project did not install it.

    changed: libraries that are not those that were installed.
    """

    version: str
    torch: str = ""
    contents: Contents | None = None
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long a build takes. basis: where that is known from, a sentence."""

    seconds: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a build on this host would be. key: of its wheel; nvcc: of the toolkit, "13.1.115", None without one."""

    key: BuildKey
    nvcc: str | None
    sizing: Sizing
    estimate: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """reasons: sentences, the one that decided first. candidate: what to install; build: what to build, or would be.

    falls_back: a wheel that was not read yet turns out unfit on the host, and then it is built.
    """

    action: Action
    reasons: tuple[str, ...]
    candidate: Candidate | None = None
    build: Build | None = None
    falls_back: bool = False


def decide(
    package: Extension,
    target: Target,
    capabilities: Sequence[str],
    candidates: Sequence[Candidate],
    installed: Installed | None,
    build: Build | None,
    *,
    rebuild: bool = False,
) -> Decision:
    """What to do. capabilities: of the host's GPUs, "12.0"; candidates: in order; build: None without a source.

    rebuild: build even where a wheel fits or the package is there.
    """
    why_not = "a build was asked for" if rebuild else _why_not(package, target, capabilities, installed)
    if not why_not:
        code = ", ".join(map(contents.sm, capabilities))
        reason = f"{package.name} {package.version} is installed, with code for {code}, for torch {target.torch}"
        return Decision(action=Action.NOTHING, reasons=(reason,))
    reasons = [why_not]
    can_build = build is not None and package.from_ != "wheel"
    for one in () if rebuild else candidates:
        if package.from_ == "source" and one.key is None:
            continue
        against = list(_against(one, package, target, capabilities, build))
        if not against:
            words = "read on the host before it is installed" if one.contents is None else "it has code for these GPUs"
            reasons.insert(0, f"{one.name} ({one.where}) fits: {words}")
            return Decision(
                action=Action.INSTALL,
                reasons=tuple(reasons),
                candidate=one,
                build=build if can_build else None,
                falls_back=one.contents is None and can_build,
            )
        reasons.append(f"{one.name} ({one.where}): {'; '.join(against)}")
    if build is None or not can_build:
        how = "the lock allows wheels only" if package.from_ == "wheel" else "the lock has no source"
        return Decision(action=Action.REFUSED, reasons=(f"no wheel fits, and {how}", *reasons))
    if stops := _stops(build, target):
        return Decision(action=Action.REFUSED, reasons=(stops, *reasons), build=build)
    first = "the lock says source" if package.from_ == "source" else "no wheel fits"
    return Decision(action=Action.BUILD, reasons=(why_not if rebuild else first, *reasons[rebuild:]), build=build)


def _why_not(
    package: Extension, target: Target, capabilities: Sequence[str], installed: Installed | None
) -> str:  # fmt: skip
    """Why what is installed is not it, "" where it is."""
    if installed is None:
        return f"{package.name} is not installed"
    if not contents.is_version(installed.version, package.version):
        return f"{package.name} {installed.version} is installed, the lock has {package.version}"
    if installed.contents is None:
        return f"{package.name} {installed.version} was installed by other hands, so nothing is known of what is in it"
    if installed.torch != target.torch:
        return f"it was installed for torch {installed.torch}, the environment has {target.torch}"
    if installed.changed:
        return f"{', '.join(installed.changed)} changed since it was installed"
    return "; ".join(contents.against(installed.contents, capabilities, package.unused))


def _against(
    one: Candidate, package: Extension, target: Target, capabilities: Sequence[str], build: Build | None
) -> Iterator[str]:
    """What speaks against a wheel, a sentence each."""
    yield from wheels.match(one.name, target).reasons
    if one.key is not None:
        yield from _other_key(one.key, build)
    if one.contents is None:
        return
    if one.contents.torch and not _is_met(one.contents.torch, target.torch):
        yield f"needs torch {one.contents.torch}, the environment has {target.torch}"
    yield from contents.against(one.contents, capabilities, package.unused)


def _other_key(key: Mapping[str, Any], build: Build | None) -> Iterator[str]:
    """A wheel that was built for another purpose: every part of its key that is not this build's."""
    if build is None:
        yield "it was built, and the lock has no source now"
        return
    wanted = json.loads(build.key.text)
    for name in sorted(wanted.keys() | key.keys()):
        if name == "platform" and _is_older(str(key.get(name)), wanted[name]):
            continue  # what was linked on an older glibc loads on a newer one
        if name == "architectures" and set(wanted[name]) <= set(key.get(name, ())):
            continue
        if key.get(name) != wanted.get(name):
            yield f"built with {name} {key.get(name)}, now it is {wanted.get(name)}"


def _is_older(built: str, wanted: str) -> bool:
    """manylinux_2_36_x86_64 is, for manylinux_2_39_x86_64."""
    old, new = built.split("_", 3), wanted.split("_", 3)
    if len(old) != 4 or len(new) != 4 or (old[0], old[3]) != (new[0], new[3]):
        return False
    return (int(old[1]), int(old[2])) <= (int(new[1]), int(new[2]))


def _is_met(requirement: str, torch: str) -> bool:
    try:
        return SpecifierSet(requirement).contains(Version(torch).public, prereleases=True)
    except InvalidSpecifier:
        return False


def _stops(build: Build, target: Target) -> str:
    """What a person has to mend before a build can begin, "" for nothing."""
    if build.nvcc is None:
        return "no nvcc at the lock's [cuda] path: ./invoke provision --host HOST --layers cuda installs it"
    if Version(build.nvcc).major != Version(target.cuda).major:
        return (
            f"nvcc is {build.nvcc} and torch brings CUDA {target.cuda}: what is built so does not load. "
            "Lock a toolkit of torch's major version, or another torch"
        )
    return ""
