import fcntl
import json
import struct
import threading

import pytest

from aerie.engines.states import awaited, pack, read_kept, read_states
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


def test_a_file_is_read_when_its_engine_lets_go_of_the_lock(tmp_path):
    path, lock = tmp_path / "s", tmp_path / "s.lock"
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        read = []
        waiting = threading.Thread(target=lambda: read.append(awaited(path)))
        waiting.start()
        write(path, [ONE] * 12, [7, 8], [2, 3, 2])
        assert waiting.is_alive()
        fcntl.flock(held, fcntl.LOCK_UN)
        waiting.join(120)
    assert read == [read_states(path)]
    assert not lock.exists()


def test_a_file_without_a_lock_is_no_state_file(tmp_path):
    with pytest.raises(AerieError, match="a lock beside it"):
        awaited(write(tmp_path / "s", [ONE] * 12, [7, 8], [2, 3, 2]))


@pytest.mark.parametrize("cut", [1, 9, 30, 200], ids=["last-byte", "token", "states", "header"])
def test_a_truncated_file_is_an_error(tmp_path, cut):
    path = write(tmp_path / "s", [ONE] * 12, [7, 8], [2, 3, 2])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(AerieError, match="synthesize again"):
        read_states(path)


def test_another_type_is_an_error(tmp_path):
    with pytest.raises(AerieError, match="types F16 and I64"):
        read_states(write(tmp_path / "s", [ONE] * 12, [7, 8], [2, 3, 2], dtype="F16"))


def kept_states(tmp_path, dtype):
    """States in the range of real ones: signs, small exponents, a full mantissa, and one that is very large."""
    numbers = [
        (exponent << 7 | place * 37 % 128 | place % 2 << 15) for place, exponent in enumerate([126, 127, 125] * 7)
    ]
    return read_states(write(tmp_path / "written", [*numbers, 0x47AB, 0x0001, 0x8000], [7, 8], [2, 3, 4], dtype=dtype))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_kept_states_are_the_same_to_the_bit(tmp_path, dtype):
    states, path = kept_states(tmp_path, dtype), tmp_path / "kept"
    path.write_bytes(pack(states))
    assert read_kept(path) == states


def test_a_kept_file_is_a_safetensors_file_with_a_whole_number_of_words_before_its_tensors(tmp_path):
    data = pack(kept_states(tmp_path, "BF16"))
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert {name: part["shape"] for name, part in header.items() if name == "plane.0"} == {"plane.0": [24]}
    assert (
        max(part["data_offsets"][1] for name, part in header.items() if name != "__metadata__")
        == len(data) - 8 - length
    )


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_no_changed_byte_of_a_kept_file_goes_unseen(tmp_path, dtype):
    states, path = kept_states(tmp_path, dtype), tmp_path / "kept"
    whole = pack(states)
    unseen = []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            same = read_kept(path) == states  # a changed name of a plane or a blank of the header does no harm
        except AerieError as error:
            assert "synthesize again" in str(error)
        else:
            unseen += [] if same else [place]
    assert unseen == []


@pytest.mark.parametrize("cut", [1, 9, 100, 400], ids=["last-byte", "plane", "planes", "header"])
def test_a_truncated_kept_file_is_an_error(tmp_path, cut):
    path = tmp_path / "kept"
    path.write_bytes(pack(kept_states(tmp_path, "BF16"))[:-cut])
    with pytest.raises(AerieError, match="cut short or changed"):
        read_kept(path)


def test_what_an_engine_wrote_is_not_taken_for_kept_states(tmp_path):
    with pytest.raises(AerieError, match="cut short or changed"):
        read_kept(write(tmp_path / "s", [ONE] * 12, [7, 8], [2, 3, 2]))
