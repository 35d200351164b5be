"""The sections of an ELF64 file by name, as far as reading device code needs them."""

import struct
from dataclasses import dataclass

from aerie.extensions._source import Source

__all__ = ["MAGIC", "Section", "sections"]

MAGIC = b"\x7fELF"
_SECTION = struct.Struct("<IIQQQQIIQQ")  # sh_name, type, flags, addr, offset, size, link, info, addralign, entsize
_SHT_NOBITS = 8
_SHN_XINDEX = 0xFFFF  # the true index is in section 0
# Bounds on what is read into memory, far above what was seen (120 sections, 1 kB of names; 2026-11-30).
_MOST_SECTIONS = 1 << 17
_MOST_NAME_BYTES = 16 << 20
# The names lie just in front of the section table. Read with it, a library inside a wheel is unpacked once less.
_NAMES_BEFORE_TABLE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Where a section is in the file; `size_bytes` is 0 for one that takes no room in it."""

    name: str
    offset: int
    size_bytes: int


def sections(source: Source) -> tuple[Section, ...]:
    """All sections of a little-endian ELF64 file; AerieError where there is no such table, or it is damaged."""
    header = source.read(0, 64, "an ELF header")
    if header[:4] != MAGIC or header[4:6] != b"\x02\x01":
        source.fail(0, header[:6].hex(" "), "a little-endian ELF64 file: 7f 45 4c 46 02 01")
    (table,) = struct.unpack_from("<Q", header, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", header, 58)
    if table == 0:
        source.fail(40, "no section table", "one: without it nobody can say where the device code is")
    if entry_bytes != _SECTION.size:
        source.fail(58, f"section entries of {entry_bytes} bytes", f"{_SECTION.size}")
    if count == 0 or names_index == _SHN_XINDEX:
        first = _SECTION.unpack(source.read(table, _SECTION.size, "section 0"))
        count, names_index = count or first[5], first[6] if names_index == _SHN_XINDEX else names_index
    if not 0 < count <= _MOST_SECTIONS or names_index >= count:
        source.fail(60, f"{count} sections, their names in number {names_index}", f"1 to {_MOST_SECTIONS} sections")
    return _read(source, table, count, names_index)


def _read(source: Source, table: int, count: int, names_index: int) -> tuple[Section, ...]:
    if table + count * _SECTION.size > source.size_bytes:
        source.fail(table, f"{source.size_bytes - table} bytes left", f"a table of {count} sections, 64 bytes each")
    start = max(0, table - _NAMES_BEFORE_TABLE_BYTES)
    window = source.read(start, table - start + count * _SECTION.size, f"a table of {count} sections")
    rows = list(_SECTION.iter_unpack(window[table - start :]))
    names_at, names_bytes = rows[names_index][4], rows[names_index][5]
    if names_bytes > _MOST_NAME_BYTES:
        source.fail(table + names_index * _SECTION.size, f"{names_bytes} bytes of names", f"{_MOST_NAME_BYTES} at most")
    if start <= names_at and names_at + names_bytes <= start + len(window):
        names = window[names_at - start : names_at - start + names_bytes]
    else:
        names = source.read(names_at, names_bytes, "section names")
    return tuple(
        Section(
            name=_name(names, row[0]),
            offset=row[4],
            size_bytes=0 if row[1] == _SHT_NOBITS else row[5],
        )
        for row in rows
    )


def _name(names: bytes, offset: int) -> str:
    """Only the start of it: 128 bytes tell every name that is looked for, and a damaged table has endless ones."""
    return names[offset : offset + 128].split(b"\0", 1)[0].decode("ascii", "replace")
