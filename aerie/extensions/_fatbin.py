"""CUDA's fat binaries: a header, then for each image a header of its own and the image.

NVIDIA documents the first header only (fatbinary.h of old toolkits). The rest was read from libraries of CUDA 11.8 to
13.5 and from images that `ptxas` and `fatbinary` 13.0 made of known targets; it agrees with what cuobjdump 13.5 lists
(2026-11-30):

    fatbin  u32 magic, u16 version, u16 header size, u64 bytes that follow
    image   u16 kind, u16, u32 header size (64 to 112), u64 padded size, u32 compressed size, u32,
            u16 minor, u16 major (of the cubin's or PTX's version), u32 sm, u32, u32, u64 flags, u64, u64 unpacked size
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aerie.extensions._source import Source

__all__ = ["EM_CUDA", "MAGIC", "Image", "Kind", "fatbins"]

Kind = Literal["sass", "ptx", "other"]

MAGIC = b"\x50\xed\x55\xba"  # 0xBA55ED50
_FATBIN = struct.Struct("<4sHHQ")
_IMAGE = struct.Struct("<HHIQIIHHIIIQQQ")
_KINDS: dict[int, Kind] = {1: "ptx", 2: "sass"}  # 4 is a cubin of before ELF, 8 NVVM IR: nothing that a driver runs now
_LZ4, _ZSTD = 0x2000, 0x8000
_ARCHITECTURE_SPECIFIC, _FAMILY_SPECIFIC = 1 << 20, 1 << 21  # sm_120a, sm_120f; the cubin itself says neither
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
EM_CUDA = 190
_LARGEST_HEADER_BYTES = 4096
_MOST_PADDING_BYTES = 4096
_MOST_IMAGES = 1 << 18  # and fatbins: a limit on memory and time, far above what was seen (6,000 in libcublasLt 13.10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of a fatbin. `unit` numbers the fatbins of the section from 0; `size_bytes` is as stored, unpadded."""

    kind: Kind
    arch: str
    size_bytes: int
    unit: int


def fatbins(source: Source, start: int, size_bytes: int) -> Iterator[Image]:
    """The images of all fatbins in a range of a file, in their order; AerieError where it is anything else."""
    position, end, unit, images = start, start + size_bytes, 0, 0
    while position < end:
        position = _after_padding(source, position, end)
        if position == end:
            return
        header = source.read(position, min(_FATBIN.size, end - position), "a fatbin header")
        if len(header) < _FATBIN.size or header[:4] != MAGIC:
            source.fail(position, header[:4].hex(" "), f"the magic of a fatbin: {MAGIC.hex(' ')}")
        _, version, header_bytes, body_bytes = _FATBIN.unpack(header)
        if version != 1 or not _FATBIN.size <= header_bytes <= _LARGEST_HEADER_BYTES:
            source.fail(position + 4, f"version {version}, header of {header_bytes} bytes", "version 1, 16 bytes")
        body = position + header_bytes
        if body + body_bytes > end:
            source.fail(position + 8, f"a fatbin of {body_bytes} bytes", f"{end - body} at most, its section's end")
        for image in _images(source, body, body + body_bytes, unit):
            images += 1
            if images > _MOST_IMAGES:
                break
            yield image
        if max(images, unit) >= _MOST_IMAGES:
            source.fail(position, f"{unit + 1} fatbins with {images} images", f"fewer than {_MOST_IMAGES} in a section")
        position, unit = body + body_bytes, unit + 1


def _after_padding(source: Source, position: int, end: int) -> int:
    """Past the zeros with which linkers align the next fatbin."""
    left = end - position
    if source.read(position, min(4, left), "a fatbin") == MAGIC:
        return position
    rest = source.read(position, min(_MOST_PADDING_BYTES, left), "padding").lstrip(b"\0")
    skipped = min(_MOST_PADDING_BYTES, left) - len(rest)
    if not rest and left > _MOST_PADDING_BYTES:
        source.fail(position, f"{skipped} zeros", f"a fatbin: {MAGIC.hex(' ')}")
    return position + skipped


def _images(source: Source, position: int, end: int, unit: int) -> Iterator[Image]:
    while position < end:
        if position + _IMAGE.size > end:
            source.fail(position, f"{end - position} bytes left of the fatbin", f"an image's header of {_IMAGE.size}")
        row = _IMAGE.unpack(source.read(position, _IMAGE.size, "an image's header"))
        kind, header_bytes, padded_bytes, packed_bytes, number, flags = row[0], row[2], row[3], row[4], row[8], row[11]
        if not _IMAGE.size <= header_bytes <= _LARGEST_HEADER_BYTES:
            source.fail(position + 4, f"a header of {header_bytes} bytes", f"{_IMAGE.size} to {_LARGEST_HEADER_BYTES}")
        payload = position + header_bytes
        if payload + padded_bytes > end:
            source.fail(position + 8, f"an image of {padded_bytes} bytes", f"{end - payload} at most, its fatbin's end")
        if packed_bytes > padded_bytes:
            source.fail(position + 16, f"{packed_bytes} bytes compressed", f"{padded_bytes} at most")
        if kind in _KINDS and not 10 <= number < 1000:
            source.fail(position + 28, f"sm {number}", "10 to 999")
        image = Image(
            kind=_KINDS.get(kind, "other"),
            arch=_arch(source, position, number, flags),
            size_bytes=packed_bytes or padded_bytes,
            unit=unit,
        )
        _check_payload(source, payload, image, number, flags)
        yield image
        position = payload + padded_bytes


def _arch(source: Source, position: int, number: int, flags: int) -> str:
    suffix = flags & (_ARCHITECTURE_SPECIFIC | _FAMILY_SPECIFIC)
    if suffix == _ARCHITECTURE_SPECIFIC | _FAMILY_SPECIFIC:
        source.fail(position + 40, f"flags 0x{flags:x}", "one of architecture-specific and family-specific")
    return f"sm_{number}" + {0: "", _ARCHITECTURE_SPECIFIC: "a", _FAMILY_SPECIFIC: "f"}[suffix]


def _check_payload(source: Source, payload: int, image: Image, number: int, flags: int) -> None:
    """Compare what the header says with the image where that needs no unpacking: a zstd frame, a plain cubin."""
    if flags & _ZSTD:
        start = source.read(payload, 4, "a zstd frame")
        if start != _ZSTD_MAGIC:
            source.fail(payload, start.hex(" "), f"a zstd frame: {_ZSTD_MAGIC.hex(' ')}")
    elif image.kind == "sass" and not flags & _LZ4:
        cubin = source.read(payload, 64, "a cubin's ELF header")
        (machine,), (elf_flags,) = struct.unpack_from("<H", cubin, 18), struct.unpack_from("<I", cubin, 48)
        if cubin[:4] != b"\x7fELF" or machine != EM_CUDA:
            source.fail(payload, cubin[:20].hex(" "), f"a cubin: an ELF file for machine {EM_CUDA}")
        # The second byte since ABI version 8 (CUDA 13), the first before.
        seen = (elf_flags >> 8 if cubin[8] >= 8 else elf_flags) & 0xFF
        if seen != number:
            source.fail(payload + 48, f"a cubin for sm_{seen}", f"sm_{number}, as its fatbin says")
