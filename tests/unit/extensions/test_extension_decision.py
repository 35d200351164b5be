"""What is done for an extension on a host, and the reasons that an operator reads: a pure function of what was read."""

from dataclasses import replace
from typing import Any

import pytest

from aerie.extensions.build_key import BuildKey
from aerie.extensions.contents import Contents, Group
from aerie.extensions.decide import Action, Build, Candidate, Decision, Installed, decide
from aerie.extensions.sizing import Sizing
from aerie.extensions.wheels import Target
from aerie.lock import Extension

TARGET = Target(python="3.12", torch="2.14.1+cu130", cuda="13.0", cxx11_abi=True, machine="x86_64", glibc=(2, 39))
SHA = "a" * 64
WHEEL = "flash_attn-2.8.3+cu13torch2.14cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
SIZING = Sizing(jobs=2, nvcc_threads=1, memory_bytes=13, budget_bytes=20, reasons=("2 jobs",))


def package(**differs: Any) -> Extension:
    fields = {
        "name": "flash-attn", "version": "2.8.3", "environment": "train", "module": "flash_attn",
        "source": {"sha256": SHA}, "wheels": [{"name": WHEEL, "sha256": "b" * 64}],
    }  # fmt: skip
    return Extension.model_validate(fields | differs)


def holds(*code: str, name: str = "flash_attn_2_cuda.so", torch: str = "") -> Contents:
    return Contents(libraries={name: (Group(units=3, code=code),)}, torch=torch)


def key(**differs: Any) -> BuildKey:
    fields = {
        "package": "flash-attn", "version": "2.8.3", "source_sha256": SHA, "options": {}, "python": "3.12",
        "torch": TARGET.torch, "cuda": "13.1", "cxx11_abi": True, "architectures": ("12.0",),
        "platform": "manylinux_2_39_x86_64",
    }  # fmt: skip
    return BuildKey(**(fields | differs))


def build(nvcc: str | None = "13.1.115") -> Build:
    return Build(key=key(), nvcc=nvcc, sizing=SIZING, estimate=None)


def locked(contents: Contents | None = None, name: str = WHEEL) -> Candidate:
    return Candidate(name=name, digest="b" * 64, where="the lock's wheel", contents=contents)


def built(contents: Contents, **differs: Any) -> Candidate:
    import json

    made = json.loads(key(**differs).text)
    return Candidate(name=WHEEL, digest="c" * 64, where="the controller's store", contents=contents, key=made)


def decided(
    *candidates: Candidate, installed: Installed | None = None, made: Build | None = None, rebuild: bool = False,
    no_source: bool = False, **differs: Any,
) -> Decision:  # fmt: skip
    wanted = package(**differs)
    chance = None if no_source else made or build()
    return decide(wanted, TARGET, ["12.0"], candidates, installed, chance, rebuild=rebuild)


GOOD = holds("sass sm_120")
THERE = Installed(version="2.8.3", torch=TARGET.torch, contents=GOOD)


def test_what_is_installed_and_has_code_for_the_card_is_left_alone():
    found = decided(installed=THERE)
    assert found.action is Action.NOTHING
    assert found.reasons == (
        "flash-attn 2.8.3 is installed, with code for sm_120, for torch 2.14.1+cu130",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("installed", "why"),
    [
        (None, "flash-attn is not installed"),
        (replace(THERE, version="2.8.2"), "flash-attn 2.8.2 is installed, the lock has 2.8.3"),
        (replace(THERE, contents=None), "was installed by other hands"),
        (replace(THERE, torch="2.13.0+cu130"), "installed for torch 2.13.0+cu130, the environment has 2.14.1+cu130"),
        (replace(THERE, changed=("x.so",)), "x.so changed since it was installed"),
        (replace(THERE, contents=holds("sass sm_90")), "flash_attn_2_cuda.so has no code for sm_120: sass sm_90"),
        (replace(THERE, contents=holds("ptx sm_90")), "has only PTX for sm_120"),
    ],
    ids=["absent", "other-version", "foreign", "other-torch", "changed", "no-code", "ptx-only"],
)
def test_why_what_is_there_is_not_enough_is_said(installed, why):
    found = decided(locked(GOOD), installed=installed)
    assert found.action is Action.INSTALL
    assert why in found.reasons[1]


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        (locked(holds("sass sm_80", "sass sm_90", "sass sm_100f")), "no code for sm_120: sass sm_100f, sass sm_80"),
        (locked(holds("ptx sm_90")), "only PTX for sm_120, which the driver would have to compile"),
        (locked(holds("sass sm_120", torch="==2.13.0")), "needs torch ==2.13.0, the environment has 2.14.1+cu130"),
        (locked(name=WHEEL.replace("2.14", "2.13")), "built with torch 2.13, the environment has 2.14.1+cu130"),
        (locked(name=WHEEL.replace("cu13", "cu12")), "built with CUDA 12, torch brings 13.0"),
        (locked(name=WHEEL.replace("TRUE", "FALSE")), "the C++ ABI before C++11"),
        (locked(name=WHEEL.replace("cp312", "cp311")), "for Python cp311"),
        (locked(Contents(libraries={})), "no library in it holds device code"),
        (built(GOOD, torch="2.13.0+cu130"), "built with torch 2.13.0+cu130, now it is 2.14.1+cu130"),
        (built(GOOD, source_sha256="d" * 64), "built with source_sha256 " + "d" * 64),
        (built(GOOD, options={"X": "1"}), "built with options {'X': '1'}, now it is {}"),
        (built(GOOD, platform="manylinux_2_41_x86_64"), "built with platform manylinux_2_41_x86_64"),
    ],
)
def test_a_wheel_that_does_not_fit_is_passed_over_with_its_reason_and_what_is_needed_is_built(candidate, why):
    found = decided(candidate)
    assert found.action is Action.BUILD
    assert found.reasons[0] == "no wheel fits"
    assert [reason for reason in found.reasons if why in reason] != []


def test_a_wheel_built_on_an_older_system_or_for_more_cards_is_taken():
    for one in (built(GOOD, platform="manylinux_2_36_x86_64"), built(GOOD, architectures=("9.0", "12.0"))):
        assert decided(one).candidate == one


def test_libraries_that_the_lock_calls_unused_need_no_code():
    both = Contents(libraries={**GOOD.libraries, **holds("sass sm_90a", name="pkg/flash_ops.so").libraries})
    assert decided(locked(both)).action is Action.BUILD
    assert decided(locked(both), unused=["pkg/flash_ops.*"]).action is Action.INSTALL
    assert decided(locked(both), unused=["*"]).action is Action.BUILD  # with nothing left to judge it proves nothing


def test_a_wheel_that_nobody_has_read_is_read_on_the_host_and_a_build_follows_where_it_is_unfit():
    found = decided(locked())
    assert (found.action, found.falls_back) == (Action.INSTALL, True)
    assert "read on the host before it is installed" in found.reasons[0]
    assert not decided(locked(), no_source=True).falls_back


def test_the_first_that_fits_is_taken():
    first, second = built(GOOD), locked(GOOD)
    assert decided(first, second).candidate == first
    assert decided(built(holds("sass sm_90")), second).candidate == second


def test_the_locks_word_counts():
    assert decided(locked(GOOD), **{"from": "source"}).action is Action.BUILD
    assert decided(built(GOOD), **{"from": "source"}).action is Action.INSTALL
    refused = decided(locked(holds("sass sm_90")), **{"from": "wheel"})
    assert (refused.action, refused.reasons[0]) == (Action.REFUSED, "no wheel fits, and the lock allows wheels only")
    refused = decided(locked(holds("sass sm_90")), no_source=True)
    assert (refused.action, refused.reasons[0]) == (Action.REFUSED, "no wheel fits, and the lock has no source")


def test_a_build_that_was_asked_for_is_done_though_all_is_there():
    found = decided(locked(GOOD), installed=THERE, rebuild=True)
    assert (found.action, found.reasons[0]) == (Action.BUILD, "a build was asked for")


@pytest.mark.parametrize(
    ("nvcc", "said"),
    [
        (None, "no nvcc at the lock's [cuda] path"),
        ("12.8.93", "nvcc is 12.8.93 and torch brings CUDA 13.0: what is built so does not load"),
    ],
)
def test_a_build_that_cannot_end_well_is_refused_before_it_begins(nvcc, said):
    found = decided(made=build(nvcc))
    assert found.action is Action.REFUSED
    assert found.reasons[0].startswith(said)


def test_another_minor_version_of_nvcc_than_torchs_is_no_obstacle():
    assert decided(made=build("13.1.115")).action is Action.BUILD
