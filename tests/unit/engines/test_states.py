import json
import struct

import pytest

from aerie.engines.states import read_states
from aerie.errors import AerieError

NAN, INFINITY, LARGEST, ONE = 0x7FC0, 0xFF80, 0x7F7F, 0x3F80  # bf16, which is also the upper half of fp32


def write(path, values, tokens, shape, dtype="BF16"):
    numbers = struct.pack(f"<{len(values)}H", *values)
    if dtype == "F32":
        numbers = struct.pack(f"<{len(values)}I", *(value << 16 | 0xFFFF for value in values))
    body = numbers + struct.pack(f"<{len(tokens)}q", *tokens)
    split = len(numbers)
    header = json.dumps(
        {
            "hidden_states": {"dtype": dtype, "shape": shape, "data_offsets": [0, split]},
            "token_ids": {"dtype": "I64", "shape": [len(tokens)], "data_offsets": [split, len(body)]},
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


@pytest.mark.parametrize(
    ("value", "is_finite"),
    [(ONE, True), (LARGEST, True), (NAN, False), (INFINITY, False), (0x7F80, False), (0x007F, True)],
    ids=["one", "largest", "nan", "minus-infinity", "infinity", "low-byte-only"],
)
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_states(tmp_path, value, is_finite, dtype):
    states = read_states(write(tmp_path / "s", [ONE] * 11 + [value], [7, 8], [2, 3, 2], dtype=dtype))
    assert states.shape == (2, 3, 2)
    assert states.token_ids == (7, 8)
    assert states.is_finite is is_finite


@pytest.mark.parametrize("cut", [1, 9, 30, 200], ids=["last-byte", "token", "states", "header"])
def test_a_truncated_file_is_an_error(tmp_path, cut):
    path = write(tmp_path / "s", [ONE] * 12, [7, 8], [2, 3, 2])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(AerieError, match="synthesize again"):
        read_states(path)


def test_another_type_is_an_error(tmp_path):
    with pytest.raises(AerieError, match="types F16 and I64"):
        read_states(write(tmp_path / "s", [ONE] * 12, [7, 8], [2, 3, 2], dtype="F16"))
