"""Files of hidden states: what engines write, and how they are kept. Standard library alone: there may be no torch.

Kept states are a third smaller, losslessly. The high byte of a bf16 or fp32 number holds the sign and seven bits of the
exponent, and the exponents of hidden states are few: coded by Huffman's method it takes about 3 bits. The other bytes
look random, no coder gains on them and they stay as they are. Matching strings would cost time and find none.
"""

import fcntl
import hashlib
import json
import struct
import time
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aerie.errors import AerieError

__all__ = ["SCHEMA", "States", "awaited", "header", "pack", "read_kept", "read_states"]

SCHEMA = "aerie.hidden-states/1"
_SIZES = {"BF16": 2, "F32": 4}  # bytes of a number
_LOOK_S = 0.2
_WBITS = -15  # deflate without zlib's header and checksum: a sha256 covers everything
_REMEDY = "The engine's write was cut short, or another version of it wrote the file: synthesize again."
_KEPT_REMEDY = "The file was cut short or changed after it was written: synthesize again."


@dataclass(frozen=True, kw_only=True)
class States:
    """What a state file holds. dtype: "BF16" or "F32"; shape: (positions, layers, hidden size); numbers: of that shape,
    little-endian, the last dimension closest together; token_ids: one for each position.
    """

    dtype: str
    shape: tuple[int, int, int]
    token_ids: tuple[int, ...]
    numbers: bytes

    @cached_property
    def is_finite(self) -> bool:
        """Whether no number is NaN or infinite."""
        # Those have all 8 exponent bits set: 7 in the highest byte, 1 on top of the next. Searching the highest bytes
        # is quick, and nothing sound is that large (1.7e38), so the exact test almost never runs.
        # fp32 begins, at its high end, as bf16 does.
        size = _SIZES[self.dtype]
        high = self.numbers[size - 1 :: size]
        if 0x7F not in high and 0xFF not in high:
            return True
        next_to_it = self.numbers[size - 2 :: size]
        return not any(byte & 0x7F == 0x7F and low & 0x80 for byte, low in zip(high, next_to_it, strict=True))


def read_states(path: Path) -> States:
    """Read what an engine wrote in safetensors format: hidden_states, bf16 or fp32 [T, layers, H], token_ids int64 [T].

    Raises AerieError for anything else, such as a truncated file.
    """
    try:
        header, body = _container(path)
        states, tokens = header["hidden_states"], header["token_ids"]
        if states["dtype"] not in _SIZES or tokens["dtype"] != "I64":
            raise ValueError(f"types {states['dtype']} and {tokens['dtype']}")
        positions, layers, hidden = states["shape"]
        numbers = _part(body, states["data_offsets"], _SIZES[states["dtype"]] * positions * layers * hidden)
        token_ids = array("q", _part(body, tokens["data_offsets"], 8 * positions).tobytes())
    except (OSError, KeyError, TypeError, ValueError, struct.error) as error:
        expected = "hidden_states in bf16 or fp32 [T, layers, H] and T token_ids in int64"
        raise _unreadable(path, error, expected, _REMEDY) from error
    return States(
        dtype=states["dtype"],
        shape=(positions, layers, hidden),
        token_ids=tuple(token_ids),
        numbers=bytes(numbers),
    )


def awaited(path: Path, patience_s: float = 0) -> States:
    """As read_states, once the engine that writes the file has let go of the lock beside it; the lock is removed.

    patience_s: how long both may stay unseen, or the file cut short, where another host writes them.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _awaited(path)
        except AerieError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)


def _awaited(path: Path) -> States:
    lock = path.with_name(f"{path.name}.lock")
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    except FileNotFoundError as error:
        raise _unreadable(path, error, "a lock beside it, held until the file is whole", _REMEDY) from error
    states = read_states(path)
    lock.unlink()
    return states


def pack(states: States) -> bytes:
    """The states as a file to keep: a safetensors file too, of planes of bytes and with a sha256 over all they hold."""
    size = _SIZES[states.dtype]
    coder = zlib.compressobj(1, zlib.DEFLATED, _WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    high = coder.compress(states.numbers[size - 1 :: size]) + coder.flush()
    tokens = array("q", states.token_ids).tobytes()
    parts: dict[str, tuple[str, bytes]] = {"token_ids": ("I64", tokens), "plane.high": ("U8", high)}
    for place in range(size - 1):
        parts[f"plane.{place}"] = ("U8", states.numbers[place::size])
    about = {
        "schema": SCHEMA,
        "dtype": states.dtype,
        "shape": json.dumps(states.shape),  # the format has only text here
        "sha256": _digest(states.numbers, tokens),
    }
    head = header(
        {
            name: (dtype, (len(data) // 8 if dtype == "I64" else len(data),), len(data))
            for name, (dtype, data) in parts.items()
        },
        about,
    )
    return b"".join((head, *(data for _, data in parts.values())))


def header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], about: Mapping[str, str] | None = None) -> bytes:
    """How a safetensors file begins. tensors: (type, shape, bytes) of each, in the order of their bytes in the file."""
    fields: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    start = 0
    for name, (dtype, shape, size) in tensors.items():
        fields[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the tensors aligned
    return struct.pack("<Q", len(text)) + text


def read_kept(path: Path) -> States:
    """Read what `pack` made. Raises AerieError when a byte of it is not as it was."""
    try:
        header, body = _container(path)
        about = header["__metadata__"]
        if about["schema"] != SCHEMA:
            raise ValueError(f"schema {about['schema']}")
        positions, layers, hidden = json.loads(about["shape"])
        size, count = _SIZES[about["dtype"]], positions * layers * hidden
        numbers = bytearray(size * count)
        numbers[size - 1 :: size] = _inflated(_named(header, body, "plane.high"), count)
        for place in range(size - 1):
            numbers[place::size] = _named(header, body, f"plane.{place}")
        tokens = _named(header, body, "token_ids").tobytes()
        if _digest(numbers, tokens) != about["sha256"]:
            raise ValueError("another sha256 than it was written with")
    except (OSError, KeyError, TypeError, ValueError, struct.error, zlib.error) as error:
        raise _unreadable(path, error, f"states as {SCHEMA} says", _KEPT_REMEDY) from error
    return States(
        dtype=about["dtype"],
        shape=(positions, layers, hidden),
        token_ids=tuple(array("q", tokens)),
        numbers=bytes(numbers),
    )


def _container(path: Path) -> tuple[Mapping[str, Any], memoryview]:
    """Header and tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), memoryview(data)[8 + length :]


def _named(header: Mapping[str, Any], body: memoryview, name: str) -> memoryview:
    start, end = header[name]["data_offsets"]
    return _part(body, (start, end), end - start)


def _part(body: memoryview, offsets: tuple[int, int], size: int) -> memoryview:
    start, end = offsets
    part = body[start:end]
    if end - start != size or len(part) != size:
        raise ValueError(f"{len(part)} bytes where the shape needs {size}")
    return part


def _inflated(coded: memoryview, size: int) -> bytes:
    decoder = zlib.decompressobj(_WBITS)
    plain = decoder.decompress(coded, size)  # no more than that: a damaged stream may claim any length
    if len(plain) != size or not (decoder.eof or not decoder.decompress(decoder.unconsumed_tail, 1)):
        raise ValueError(f"{len(plain)} high bytes, {size} numbers")
    return plain


def _digest(numbers: bytes | bytearray, tokens: bytes) -> str:
    digest = hashlib.sha256(tokens)
    digest.update(numbers)
    return digest.hexdigest()


def _unreadable(path: Path, error: Exception, expected: str, remedy: str) -> AerieError:
    return AerieError(f"state file {path.name}", seen=str(error), expected=expected, remedy=remedy)
