"""Bounded reads from an open binary file, or from a part of one, with errors that name the offset."""

from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from aerie.errors import AerieError

__all__ = ["Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The `size_bytes` bytes of an open file from `base` on; offsets count from `base`, errors call it `name`."""

    name: str
    file: BinaryIO
    size_bytes: int
    base: int = 0

    def read(self, offset: int, size_bytes: int, what: str) -> bytes:
        """The bytes at an offset; the caller bounds `size_bytes`. AerieError where they are not all there."""
        if offset + size_bytes > self.size_bytes:
            self.fail(offset, f"{max(0, self.size_bytes - offset)} bytes left", f"{size_bytes} bytes of {what}")
        self.file.seek(self.base + offset)
        data = self.file.read(size_bytes)
        if len(data) != size_bytes:
            self.fail(offset, f"{len(data)} bytes read", f"{size_bytes} bytes of {what}")
        return data

    def part(self, name: str, offset: int, size_bytes: int) -> "Source":
        """The same file from an offset on; AerieError where that is more than there is."""
        if offset + size_bytes > self.size_bytes:
            self.fail(offset, f"{self.size_bytes - offset} bytes left", f"{size_bytes} bytes of {name}")
        return Source(name=name, file=self.file, size_bytes=size_bytes, base=self.base + offset)

    def fail(self, offset: int, seen: object, expected: str) -> NoReturn:
        """Raise the AerieError for what is at an offset."""
        raise AerieError(
            f"{self.name} at 0x{offset:x}",
            seen=seen,
            expected=expected,
            remedy="Get the file again: it is damaged, or no CUDA tool wrote it.",
        )
