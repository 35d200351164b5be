"""Fingerprints of the keys in an OpenPGP keyring, binary or armored: RFC 4880, 12.2; RFC 9580 for version 6."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

__all__ = ["fingerprints"]

PUBLIC_KEY = 6
ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(.*?)"
    rb"-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)


def fingerprints(keyring: bytes) -> list[str]:
    """Of its primary keys in order: capital hex digits, 40 for version 4. Raises ValueError when it is no keyring."""
    blocks = [_dearmor(block) for block in ARMOR.findall(keyring)] or [keyring]
    found = []
    for block in blocks:
        for tag, body in _packets(block):
            if tag == PUBLIC_KEY and body[0] == 4:
                found.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper())
            elif tag == PUBLIC_KEY and body[0] == 6:
                found.append(hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper())
    return found


def _dearmor(block: bytes) -> bytes:
    # Header lines end at an empty line; the checksum's line begins with "=".
    lines = [line.strip() for line in block.splitlines()]
    start = lines.index(b"") + 1 if b"" in lines else 0
    return base64.b64decode(b"".join(line for line in lines[start:] if not line.startswith(b"=")))


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError(f"not an OpenPGP keyring (byte {at} is {head:#04x})")
        if head & 0x40:
            tag, (length, at) = head & 0x3F, _new_length(data, at + 1)
        else:
            size = (1, 2, 4)[head & 3] if head & 3 < 3 else 0
            tag, length = (head >> 2) & 0xF, int.from_bytes(data[at + 1 : at + 1 + size], "big")
            if not size:
                length = len(data) - at - 1
            at += 1 + size
        yield tag, data[at : at + length]
        at += length


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 224:
        return ((first - 192) << 8) + data[at + 1] + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise ValueError("an OpenPGP packet in pieces, which keys never are")
