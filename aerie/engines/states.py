"""Files of hidden states, checked with the standard library alone: the controller has no torch."""

import json
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import AerieError

__all__ = ["States", "read_states"]

_SIZES = {"BF16": 2, "F32": 4}  # bytes of a number


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What a state file holds. shape: (positions, layers, hidden size)."""

    shape: tuple[int, int, int]
    token_ids: tuple[int, ...]
    is_finite: bool


def read_states(path: Path) -> States:
    """Read {hidden_states: bf16 or fp32 [T, layers, H], token_ids: int64 [T]} in safetensors format.

    Raises AerieError for anything else, such as a truncated file.
    """
    try:
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        states, tokens = header["hidden_states"], header["token_ids"]
        if states["dtype"] not in _SIZES or tokens["dtype"] != "I64":
            raise ValueError(f"types {states['dtype']} and {tokens['dtype']}")
        positions, layers, hidden = states["shape"]
        size = _SIZES[states["dtype"]]
        raw = _part(body, states["data_offsets"], size * positions * layers * hidden)
        token_ids = array("q", _part(body, tokens["data_offsets"], 8 * positions).tobytes())
    except (OSError, KeyError, TypeError, ValueError, struct.error) as error:
        raise AerieError(
            f"state file {path.name}",
            seen=str(error),
            expected="hidden_states in bf16 or fp32 [T, layers, H] and T token_ids in int64",
            remedy="The engine's write was cut short, or another version of it wrote the file: synthesize again.",
        ) from error
    return States(shape=(positions, layers, hidden), token_ids=tuple(token_ids), is_finite=_is_finite(bytes(raw), size))


def _part(body: memoryview, offsets: list[int], size: int) -> memoryview:
    start, end = offsets
    part = body[start:end]
    if end - start != size or len(part) != size:
        raise ValueError(f"{len(part)} bytes where the shape needs {size}")
    return part


def _is_finite(numbers: bytes, size: int) -> bool:
    # NaN and infinity have all 8 exponent bits set: 7 in the highest byte, 1 on top of the next. Searching the highest
    # bytes is quick, and nothing sound is that large (1.7e38), so the exact test almost never runs.
    # fp32 begins, at its high end, as bf16 does.
    high = numbers[size - 1 :: size]
    if 0x7F not in high and 0xFF not in high:
        return True
    return not any(
        byte & 0x7F == 0x7F and low & 0x80 for byte, low in zip(high, numbers[size - 2 :: size], strict=True)
    )
