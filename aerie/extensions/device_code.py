"""Which device code a library, an archive of objects or a wheel carries, read without any CUDA tool."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from aerie.errors import AerieError
from aerie.extensions import _elf, _fatbin
from aerie.extensions._source import Source

__all__ = ["Entry", "Library", "read"]

_SECTIONS = {".nv_fatbin": False, "__nv_relfatbin": True}  # name: whether it waits for the device linker
_REGISTRATION = ".nvFatBinSegment"  # a pointer to each fatbin, for the CUDA runtime
_AR_MAGIC, _AR_HEADER_BYTES = b"!<arch>\n", 60
_MOST_NAMES_BYTES = 16 << 20
_ZIP_MAGIC = b"PK\x03\x04"
_START_BYTES = 20  # up to the machine of an ELF header


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One piece of device code in a library.

    kind: "sass" runs as it is; "ptx" the driver compiles first; "other" (NVVM IR and the like) does not run.
    arch: what it was made for: "sm_120", "sm_120a" (that one architecture), "sm_120f" (its family).
    size_bytes: as stored, mostly compressed.
    unit: the translation unit (fatbin) within its library, from 0: every unit needs code for a device.
    is_relocatable: input of the device linker (-rdc); a program runs what was linked of it, which is an entry too.
    """

    kind: _fatbin.Kind
    arch: str
    size_bytes: int
    unit: int = 0
    is_relocatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library, an object or a fatbin with its device code; no entries: it has none that a CUDA tool can see.

    A few libraries pack device code in a way of their own (libcufft 12.5, in .data): cuobjdump shows nothing either.
    """

    name: str  # within its wheel or archive: "sgl_kernel/spatial_ops.abi3.so", "libx.a:unit.o"
    entries: tuple[Entry, ...]


def read(file: BinaryIO, name: str) -> tuple[Library, ...]:
    """The libraries in an open file, known by its first bytes: an ELF file, an ar archive, a fatbin, or a wheel.

    `file` is seekable; `name` is for messages and results. Of a wheel or an archive only members that are one of those
    are told, without unpacking them to memory or disk: tens of MiB of memory, and about 10 s per GB of a library. A
    cubin in a file of its own is not one: it does not say whether it is for sm_120 or for sm_120a only.
    AerieError names the offset and what was expected there.
    """
    source = Source(name=name, file=file, size_bytes=file.seek(0, io.SEEK_END))
    start = source.read(0, min(_START_BYTES, source.size_bytes), "a file")
    if start.startswith(_ZIP_MAGIC):
        return tuple(_wheel(source))
    if _is_known(start):
        return tuple(_libraries(source, start))
    return source.fail(0, start[:8].hex(" "), "an ELF library, an ar archive, a fatbin or a wheel")


def _is_known(start: bytes) -> bool:
    is_cubin = start.startswith(_elf.MAGIC) and start[18:20] == _fatbin.EM_CUDA.to_bytes(2, "little")
    return start.startswith((_elf.MAGIC, _fatbin.MAGIC, _AR_MAGIC)) and not is_cubin


def _libraries(source: Source, start: bytes) -> Iterator[Library]:
    if start.startswith(_AR_MAGIC):
        yield from _archive(source)
    elif start.startswith(_fatbin.MAGIC):
        yield Library(name=source.name, entries=tuple(_entries(source, 0, source.size_bytes, 0, False)))
    else:
        yield _library(source)


def _library(source: Source) -> Library:
    found = _elf.sections(source)
    carriers = [section for section in found if section.name in _SECTIONS and section.size_bytes]
    if not carriers and any(section.name == _REGISTRATION and section.size_bytes for section in found):
        source.fail(
            0, f"a {_REGISTRATION} section alone", f"the device code that it registers: {' or '.join(_SECTIONS)}"
        )
    carried_bytes = sum(section.size_bytes for section in carriers)
    if carried_bytes > source.size_bytes:
        source.fail(0, f"{carried_bytes} bytes of device code", f"no more than the file's {source.size_bytes}")
    entries: list[Entry] = []
    for section in carriers:
        if section.offset + section.size_bytes > source.size_bytes:
            source.fail(section.offset, f"section {section.name} past the end", f"{section.size_bytes} bytes of it")
        first = entries[-1].unit + 1 if entries else 0
        entries += _entries(source, section.offset, section.size_bytes, first, _SECTIONS[section.name])
    return Library(name=source.name, entries=tuple(entries))


def _entries(source: Source, start: int, size_bytes: int, first_unit: int, relocatable: bool) -> Iterator[Entry]:
    for image in _fatbin.fatbins(source, start, size_bytes):
        yield Entry(
            kind=image.kind,
            arch=image.arch,
            size_bytes=image.size_bytes,
            unit=first_unit + image.unit,
            is_relocatable=relocatable,
        )


def _archive(source: Source) -> Iterator[Library]:
    """The ELF objects of an ar archive; names above 15 bytes are in the member "//", as GNU ar writes them."""
    position, names = len(_AR_MAGIC), b""
    while position < source.size_bytes:
        header = source.read(position, _AR_HEADER_BYTES, "a member's header")
        digits = header[48:58].rstrip()
        if header[58:] != b"`\n" or not digits.isdigit():
            source.fail(position, header[48:].hex(" "), "a size in decimal, then 60 0a, at the end of an ar header")
        body, size_bytes = position + _AR_HEADER_BYTES, int(digits)
        member = source.part(f"{source.name}:{_member_name(header, names)}", body, size_bytes)
        if header.startswith(b"//"):
            if size_bytes > _MOST_NAMES_BYTES:
                source.fail(position + 48, f"{size_bytes} bytes of names", f"{_MOST_NAMES_BYTES} at most")
            names = member.read(0, size_bytes, "member names")
        elif member.read(0, min(4, size_bytes), "a member") == _elf.MAGIC:
            yield _library(member)
        position = body + size_bytes + size_bytes % 2


def _member_name(header: bytes, names: bytes) -> str:
    name = header[:16].rstrip()
    if name.startswith(b"/") and name[1:].isdigit():
        name = names[int(name[1:]) :].split(b"\n", 1)[0]
    return name.removesuffix(b"/").decode("utf-8", "replace")


def _wheel(source: Source) -> Iterator[Library]:
    try:
        with zipfile.ZipFile(source.file) as wheel:
            for info in wheel.infolist():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise NotImplementedError(f"{info.filename} is compressed by method {info.compress_type}")
                with wheel.open(info) as member:
                    start = member.read(_START_BYTES)
                    if _is_known(start):
                        part = Source(name=info.filename, file=cast(BinaryIO, member), size_bytes=info.file_size)
                        yield from _libraries(part, start)
    # RuntimeError: encrypted, or a compression that no wheel has; the rest: damage of each kind.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise AerieError(
            source.name,
            seen=str(error),
            expected="a wheel that unpacks",
            remedy="Get the wheel again, and compare its hash with the package index.",
        ) from error
