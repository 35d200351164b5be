"""Which device code runs on which GPU, and that code for other cards, or PTX alone, is told apart from it."""

from pathlib import Path

import pytest

from aerie.errors import UsageError
from aerie.extensions.coverage import Coverage, covers
from aerie.extensions.device_code import Entry, read

FILES = Path(__file__).parent / "device_code"


def entries(text: str) -> list[Entry]:
    """ "sass sm_80 0, ptx sm_90 1 relocatable": kind, architecture, unit."""
    found = []
    for part in text.split(", "):
        kind, arch, unit, *rest = part.split()
        assert kind in ("sass", "ptx", "other")
        found.append(Entry(kind=kind, arch=arch, size_bytes=100, unit=int(unit), is_relocatable=bool(rest)))
    return found


@pytest.mark.parametrize(
    ("made_for", "runs_on", "not_on"),
    [
        ("sm_120", "sm_120 sm_121", "sm_100 sm_110 sm_90"),
        ("sm_121", "sm_121", "sm_120"),
        ("sm_120a", "sm_120", "sm_121 sm_100"),
        ("sm_120f", "sm_120 sm_121", "sm_100 sm_110"),
        ("sm_121f", "sm_121", "sm_120"),
        ("sm_100f", "sm_100 sm_103", "sm_110 sm_120"),
        ("sm_100a", "sm_100", "sm_103"),
        ("sm_103f", "sm_103", "sm_100"),
        ("sm_110f", "sm_110", "sm_100 sm_103"),
        ("sm_90", "sm_90", "sm_89 sm_100 sm_120"),
        ("sm_90a", "sm_90", "sm_100"),
        ("sm_80", "sm_80 sm_86 sm_89", "sm_87 sm_75 sm_90 sm_120"),
        ("sm_86", "sm_86 sm_89", "sm_80 sm_87"),
        ("sm_87", "sm_87", "sm_89 sm_86"),
    ],
)
def test_sass_runs_within_its_major_version_from_its_minor_on(made_for: str, runs_on: str, not_on: str) -> None:
    held = entries(f"sass {made_for} 0")
    assert [arch for arch in runs_on.split() if covers(held, arch).state != "sass"] == []
    assert [arch for arch in not_on.split() if covers(held, arch).state != "none"] == []


@pytest.mark.parametrize(
    ("made_for", "compiles_for", "not_for"),
    [
        ("sm_80", "sm_80 sm_87 sm_90 sm_120 sm_121", "sm_75"),
        ("sm_120", "sm_120 sm_121", "sm_110 sm_90"),
        ("sm_90a", "sm_90", "sm_100 sm_120"),
        ("sm_120a", "sm_120", "sm_121"),
        ("sm_120f", "sm_120 sm_121", "sm_110"),
    ],
)
def test_ptx_is_never_taken_for_sass(made_for: str, compiles_for: str, not_for: str) -> None:
    held = entries(f"ptx {made_for} 0")
    assert [arch for arch in compiles_for.split() if covers(held, arch).state != "ptx"] == []
    assert [arch for arch in not_for.split() if covers(held, arch).state != "none"] == []


@pytest.mark.parametrize(
    ("held", "state", "units"),
    [
        ("sass sm_120 0, sass sm_120a 1", "sass", (2, 0, 0)),
        ("sass sm_120 0, sass sm_90a 1, sass sm_80 1, ptx sm_90 2", "sass", (1, 1, 1)),
        ("sass sm_120 0, ptx sm_120 0", "sass", (1, 0, 0)),
        ("sass sm_90 0, ptx sm_90 0", "ptx", (0, 1, 0)),
        ("other sm_120 0", "none", (0, 0, 1)),
        ("sass sm_90 0 relocatable, ptx sm_90 0 relocatable, sass sm_120 1", "sass", (1, 0, 0)),
        ("sass sm_120 0 relocatable, sass sm_90 1", "none", (0, 0, 1)),
        ("sass sm_120 0 relocatable", "sass", (1, 0, 0)),
    ],
    ids=["all", "some-units", "both-kinds", "ptx-only", "ir", "linked", "not-linked-for-it", "an-object"],
)
def test_units_are_counted_and_linked_code_decides(held: str, state: str, units: tuple[int, int, int]) -> None:
    found = covers(entries(held), "sm_120")
    assert (found.state, (found.sass_units, found.ptx_units, found.none_units)) == (state, units)


def test_no_device_code_is_not_code_for_another_card() -> None:
    assert covers([], "sm_120") == Coverage(arch="sm_120", state="empty", sass_units=0, ptx_units=0, none_units=0)


@pytest.mark.parametrize(
    ("name", "states"),
    [
        # sglang-kernel runs on an RTX PRO 6000 and an H200, not on a DGX Spark: its code for 12.0 is sm_120a.
        (
            "sglang-kernel-0.4.10-spatial_ops.so",
            {"sm_120": "sass", "sm_121": "none", "sm_90": "sass", "sm_103": "sass"},
        ),
        ("ptx-only.fatbin", {"sm_120": "ptx", "sm_90": "ptx", "sm_80": "none"}),
        ("rdc.so", {"sm_90": "sass", "sm_120": "none"}),
    ],
)
def test_real_libraries(name: str, states: dict[str, str]) -> None:
    with (FILES / name).open("rb") as file:
        (library,) = read(file, name)
    assert {arch: covers(library.entries, arch).state for arch in states} == states


@pytest.mark.parametrize("arch", ["12.0", "sm_120a", "sm_1200", "120", ""])
def test_a_device_is_named_by_its_capability(arch: str) -> None:
    with pytest.raises(UsageError):
        covers([], arch)
