"""Reading device code: real libraries, each listed as cuobjdump lists it, and what is said of damaged ones."""

import io
import random
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aerie.errors import AerieError
from aerie.extensions.device_code import Library, read

FILES = Path(__file__).parent / "device_code"
SPATIAL, LZ4 = "sglang-kernel-0.4.10-spatial_ops.so", "bitsandbytes-0.50.2-cuda118-lz4.fatbin"
MIB = 1 << 20

# As cuobjdump 13.5.37 lists them, but for the family suffix of a cubin, which it does not show.
HOLDS = {
    SPATIAL: {SPATIAL: "sass sm_90, sass sm_80, sass sm_89, sass sm_100f, sass sm_120a, sass sm_90a"},
    LZ4: {LZ4: "sass sm_60, sass sm_70, sass sm_75, sass sm_80, sass sm_86, sass sm_89, ptx sm_90, sass sm_90"},
    "targets.fatbin": {
        "targets.fatbin": "sass sm_120, sass sm_120a, sass sm_120f, ptx sm_120, ptx sm_120a, ptx sm_120f, "
        "sass sm_90a, ptx sm_90a"
    },
    "ptx-only.fatbin": {"ptx-only.fatbin": "ptx sm_90"},
    "rdc.so": {"rdc.so": "sass sm_90 relocatable, ptx sm_90 relocatable, sass sm_90"},
    "units.a": {
        "units.a:a_unit_with_a_long_name.o": "sass sm_90 relocatable, ptx sm_90 relocatable",
        "units.a:host.o": "",
    },
}


def content(name: str) -> bytes:
    return (FILES / name).read_bytes()


def read_bytes(data: bytes, name: str = "it") -> tuple[Library, ...]:
    return read(io.BytesIO(data), name)


def listed(libraries: tuple[Library, ...]) -> dict[str, str]:
    return {
        library.name: ", ".join(
            f"{entry.kind} {entry.arch}{' relocatable' if entry.is_relocatable else ''}" for entry in library.entries
        )
        for library in libraries
    }


def make_wheel(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as wheel:
        for name, data in members.items():
            wheel.writestr(zipfile.ZipInfo(name), data, compression)
    return file.getvalue()


@pytest.mark.parametrize("name", HOLDS)
def test_a_file_holds_what_cuobjdump_lists(name: str) -> None:
    assert listed(read_bytes(content(name), name)) == HOLDS[name]


def test_sizes_are_of_the_stored_images_and_units_are_fatbins() -> None:
    (spatial,) = read_bytes(content(SPATIAL))
    assert [entry.size_bytes for entry in spatial.entries] == [1181, 1082, 1082, 1405, 1405, 1184]
    assert {entry.unit for entry in spatial.entries} == {0}
    (rdc,) = read_bytes(content("rdc.so"))
    assert [entry.unit for entry in rdc.entries] == [0, 0, 1]
    (targets,) = read_bytes(content("targets.fatbin"))
    assert [entry.size_bytes for entry in targets.entries] == [5016, 5016, 5016, 89, 90, 90, 3432, 85]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_tells_its_libraries_and_nothing_else(compression: int) -> None:
    wheel = make_wheel({"thing/__init__.py": b"", **{f"thing/{n}": content(n) for n in HOLDS}}, compression)
    expected = {f"thing/{name}": text for holds in HOLDS.values() for name, text in holds.items()}
    assert listed(read_bytes(wheel, "thing.whl")) == expected


def section_row(library: bytes, wanted: str) -> int:
    """Where a section's entry of the table is."""
    (table,), (count, names) = struct.unpack_from("<Q", library, 40), struct.unpack_from("<HH", library, 60)
    (names_at,) = struct.unpack_from("<Q", library, table + names * 64 + 24)
    rows = [table + index * 64 for index in range(count)]
    (row,) = [
        row
        for row in rows
        if library[names_at + struct.unpack_from("<I", library, row)[0] :].startswith(wanted.encode() + b"\0")
    ]
    return row


def test_fatbins_follow_each_other_with_zeros_between() -> None:
    (library,) = read_bytes(content("ptx-only.fatbin") + bytes(24) + content(LZ4) + bytes(8))
    assert [entry.unit for entry in library.entries] == [0] + [1] * 8


def test_sections_that_are_not_in_the_file_hold_nothing() -> None:
    """As in a file of debug information, split from its library."""
    split = bytearray(content("rdc.so"))
    row = section_row(split, ".nv_fatbin")
    struct.pack_into("<I", split, row + 4, 8)
    struct.pack_into("<Q", split, row + 24, 1 << 40)
    assert listed(read_bytes(bytes(split))) == {"it": "sass sm_90 relocatable, ptx sm_90 relocatable"}


def test_a_section_table_that_counts_its_sections_itself() -> None:
    """As the format has it for objects of more than 65,279 sections."""
    library = bytearray(content("rdc.so"))
    (table,), (count, names) = struct.unpack_from("<Q", library, 40), struct.unpack_from("<HH", library, 60)
    struct.pack_into("<H", library, 60, 0)
    struct.pack_into("<Q", library, table + 32, count)
    assert listed(read_bytes(bytes(library), "rdc.so")) == HOLDS["rdc.so"]
    struct.pack_into("<H", library, 62, 0xFFFF)
    struct.pack_into("<I", library, table + 40, names)
    assert listed(read_bytes(bytes(library), "rdc.so")) == HOLDS["rdc.so"]


def overlapping() -> bytes:
    library = bytearray(content("rdc.so"))
    for name in ("__nv_relfatbin", ".nv_fatbin"):
        struct.pack_into("<Q", library, section_row(library, name) + 32, 8000)
    return bytes(library)


def with_room(library: bytes, room_bytes: int) -> bytes:
    """The library with zeros in it, and its section table behind them: its names are far from the table then."""
    (table,) = struct.unpack_from("<Q", library, 40)
    moved = bytearray(library) + bytes(room_bytes) + library[table:]
    struct.pack_into("<Q", moved, 40, len(library) + room_bytes)
    return bytes(moved)


def test_a_large_library_in_a_wheel_is_not_unpacked_to_memory() -> None:
    wheel = make_wheel({"big.so": with_room(content(SPATIAL), 96 * MIB)})
    tracemalloc.start()
    found = listed(read_bytes(wheel))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {"big.so": HOLDS[SPATIAL][SPATIAL]}
    assert peak_bytes < 48 * MIB  # zipfile passes over 16 MiB at a time


def patched(name: str, offset: int, data: bytes) -> Callable[[], bytes]:
    def make() -> bytes:
        original = content(name)
        assert original[offset : offset + len(data)] != data
        return original[:offset] + data + original[offset + len(data) :]

    return make


def number(value: int, size_bytes: int) -> bytes:
    return value.to_bytes(size_bytes, "little")


IMAGE = 16  # of the first image's header in targets.fatbin, behind the fatbin's; its payload is 112 bytes behind it
DAMAGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it at 0x0: '', expected an ELF library, an ar archive, a fatbin or a wheel"),
    "text": (lambda: b"#!/bin/sh\n", "it at 0x0: '23 21 2f 62 69 6e 2f 73', expected an ELF library"),
    "cubin": (
        lambda: content("targets.fatbin")[IMAGE + 112 :][:5016],
        "it at 0x0: '7f 45 4c 46 02 01 01 41', expected",
    ),
    "fatbin-cut": (lambda: content("targets.fatbin")[:9000], "0x8: 'a fatbin of 19576 bytes', expected 8984 at most"),
    "fatbin-version": (patched("targets.fatbin", 4, number(2, 2)), "0x4: 'version 2, header of 16 bytes'"),
    "fatbin-longer-than-its-section": (patched("rdc.so", 0x1000 + 8, number(1 << 60, 8)), "at most, its section's end"),
    "fatbin-header-0": (patched("targets.fatbin", 6, number(0, 2)), "0x4: 'version 1, header of 0 bytes'"),
    "image-header-0": (patched("targets.fatbin", IMAGE + 4, number(0, 4)), "0x14: 'a header of 0 bytes'"),
    "image-endless": (patched("targets.fatbin", IMAGE + 8, number(2**64 - 1, 8)), "its fatbin's end"),
    "image-packed-larger": (patched("targets.fatbin", IMAGE + 16, number(1 << 30, 4)), "0x20: '1073741824 bytes"),
    "image-of-no-arch": (patched("targets.fatbin", IMAGE + 28, number(0, 4)), "0x2c: 'sm 0', expected 10 to 999"),
    "image-both-suffixes": (patched("targets.fatbin", IMAGE + 42, b"\x30"), "0x38: 'flags 0x1300011', expected one of"),
    "image-of-another-arch": (
        patched("targets.fatbin", IMAGE + 28, number(90, 4)),
        "0xb0: 'a cubin for sm_120', expected sm_90, as its fatbin says",
    ),
    "cubin-gone": (patched("targets.fatbin", IMAGE + 112, bytes(64)), "expected a cubin: an ELF file for machine 190"),
    "zstd-gone": (patched("ptx-only.fatbin", 16 + 80, bytes(4)), "0x60: '00 00 00 00', expected a zstd frame"),
    "fatbins-endless": (
        lambda: (content("ptx-only.fatbin")[:8] + bytes(8)) * (1 << 19),
        "0x400000: '262145 fatbins with 0 images', expected fewer than 262144",
    ),
    "zeros": (lambda: content("ptx-only.fatbin") + bytes(5000), "0xb8: '4096 zeros', expected a fatbin: 50 ed 55 ba"),
    "sections-overlap": (overlapping, "'16000 bytes of device code', expected no more than the file's 13032"),
    "elf-32": (patched(SPATIAL, 4, b"\x01"), "expected a little-endian ELF64 file"),
    "elf-cut": (
        lambda: content(SPATIAL)[:-100],
        "0x33c8: '156 bytes left', expected a table of 4 sections, 64 bytes each",
    ),
    "elf-no-sections": (patched(SPATIAL, 40, bytes(8)), "0x28: 'no section table', expected one"),
    "elf-section-entries": (patched(SPATIAL, 58, number(40, 2)), "0x3a: 'section entries of 40 bytes', expected 64"),
    "elf-names-nowhere": (patched(SPATIAL, 62, number(900, 2)), "0x3c: '4 sections, their names in number 900'"),
    "elf-header-only": (lambda: content(SPATIAL)[:20], "0x0: '20 bytes left', expected 64 bytes of an ELF header"),
    "code-stripped": (
        lambda: content(SPATIAL).replace(b".nv_fatbin\0", b".nv_fatgon\0"),
        "'a .nvFatBinSegment section alone', expected the device code that it registers",
    ),
    "ar-size": (patched("units.a", 8 + 48, b"-1        "), "it at 0x8: '2d 31"),
    "ar-cut": (lambda: content("units.a")[:-60], "bytes of it:host.o"),
    "wheel-cut": (lambda: make_wheel({"a.so": content(SPATIAL)})[:-30], "expected a wheel that unpacks"),
    "wheel-lzma": (lambda: make_wheel({"a": b"b"}, zipfile.ZIP_LZMA), "a is compressed by method 14"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_with_its_offset_and_what_was_expected(name: str) -> None:
    make, message = DAMAGE[name]
    with pytest.raises(AerieError) as caught:
        read_bytes(make())
    assert message in str(caught.value)


def test_a_damaged_member_of_a_wheel_is_named() -> None:
    wheel = make_wheel({"good.so": content(SPATIAL), "pkg/bad.so": content(SPATIAL)[:2000]})
    with pytest.raises(AerieError, match=r"^pkg/bad\.so at 0x"):
        read_bytes(wheel)


def scrambled(rng: random.Random, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(rng.choice([1, 1, 2, 8, 40])):
        near_the_end = len(data) - 1 - rng.randrange(min(3000, len(data)))
        at = rng.choice([rng.randrange(len(data)), rng.randrange(min(200, len(data))), near_the_end])
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), number(1 << rng.randrange(64), 8)])
            case 2 if len(data) > 64:
                del data[at : at + rng.randrange(64)]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(16))
    return bytes(data or b"\0")


@pytest.mark.parametrize("name", [*HOLDS, "wheel"])
def test_scrambled_files_are_read_or_refused_quickly_and_in_little_memory(name: str) -> None:
    rng = random.Random(name)
    original = make_wheel({n: content(n) for n in HOLDS}) if name == "wheel" else content(name)
    refused, slowest_s = 0, 0.0
    tracemalloc.start()
    for _ in range(300):
        data = scrambled(rng, original)
        started = time.process_time()
        try:
            read_bytes(data)
        except AerieError:
            refused += 1
        slowest_s = max(slowest_s, time.process_time() - started)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 100  # it is damage that is tried
    assert slowest_s < 1.0
    assert peak_bytes < 16 * MIB
