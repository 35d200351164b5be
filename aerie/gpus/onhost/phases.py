"""The parts of the proof that use the driver alone. Each is a process of its own, for a GPU that hangs takes it along.

Every answer is a line of JSON on stdout, and a pair is named before it is tried: so it is known where a process stood.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import permutations

from .cuda import WORD, Cuda, CudaError, Device
from .kernels import COPY, COPY_PTX, STAMP, STAMP_PTX, stamped

__all__ = ["main", "pairs", "smoke"]

SMOKE_WORDS = 1 << 16
PAIR_BYTES = 32 << 20
COPIES = 8  # timed, after one that is not
SEED = 4242


def smoke(index: int) -> None:
    """Compile a kernel for the GPU, run it, and compare every word that it wrote."""
    cuda = Cuda()
    device = cuda.open(index)
    started = time.monotonic()
    kernel = cuda.compile(device, STAMP_PTX, STAMP)
    compiled = time.monotonic()
    seed = SEED + index  # other words for each GPU
    with cuda.memory(device, 2 * SMOKE_WORDS * WORD) as words:
        cuda.launch(kernel, _words(words, SMOKE_WORDS, seed), SMOKE_WORDS)
        cuda.wait(device)
        seen = cuda.read(device, words, 2 * SMOKE_WORDS * WORD)
    _say(
        {
            "index": index,
            "uuid": device.uuid,
            "name": device.name,
            "bus_id": device.bus_id,
            "compile_s": round(compiled - started, 3),
            "words": 2 * SMOKE_WORDS,
            "wrong_words": _differing(seen, stamped(SMOKE_WORDS, seed)),
        }
    )


def pairs(indices: Sequence[int]) -> None:
    """For every ordered pair: copy from one to the other, by the copy engine and by a kernel that reads."""
    cuda = Cuda()
    devices = [cuda.open(index) for index in indices]
    for source, target in permutations(devices, 2):
        _say({"trying": [source.index, target.index]})
        try:
            answer = _pair(cuda, source, target)
        except CudaError as error:
            answer = {"error": str(error)}
        _say({"from": source.index, "to": target.index, **answer})


def _pair(cuda: Cuda, source: Device, target: Device) -> dict[str, object]:
    can_access = cuda.can_access(target, source)
    count, seed = PAIR_BYTES // WORD // 2, SEED + 16 * source.index + target.index
    if can_access:
        cuda.enable_access(target, source)
    with cuda.memory(source, PAIR_BYTES) as words, cuda.memory(target, PAIR_BYTES) as copy:
        cuda.launch(cuda.compile(source, STAMP_PTX, STAMP), _words(words, count, seed), count)
        cuda.wait(source)
        truth = cuda.read(source, words, PAIR_BYTES)
        rate = _timed(cuda, target, lambda: cuda.copy_to_peer(source, words, target, copy, PAIR_BYTES))
        wrong = _differing(cuda.read(target, copy, PAIR_BYTES), truth)
        read_rate, read_wrong = None, None
        if can_access:
            # Into zeroed memory: what the copy engine left there would hide a kernel that does nothing.
            with cuda.memory(target, PAIR_BYTES) as read:
                kernel = cuda.compile(target, COPY_PTX, COPY)
                number = PAIR_BYTES // WORD
                arguments = (ctypes.c_uint64(read), ctypes.c_uint64(words), ctypes.c_uint32(number))
                read_rate = _timed(cuda, target, lambda: cuda.launch(kernel, arguments, number))
                read_wrong = _differing(cuda.read(target, read, PAIR_BYTES), truth)
    return {
        "can_access": can_access,
        "native_atomics": cuda.has_native_atomics(target, source),
        "words": PAIR_BYTES // WORD,
        "copy_wrong_words": wrong,
        "copy_gb_s": rate,
        "read_wrong_words": read_wrong,
        "read_gb_s": read_rate,
    }


def _timed(cuda: Cuda, device: Device, start: Callable[[], None]) -> float:
    """GB/s of PAIR_BYTES each time."""
    start()
    cuda.wait(device)
    begun = time.monotonic()
    for _ in range(COPIES):
        start()
    cuda.wait(device)
    return round(COPIES * PAIR_BYTES / 1e9 / (time.monotonic() - begun), 2)


def _words(address: int, count: int, seed: int) -> tuple[ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]:
    return ctypes.c_uint64(address), ctypes.c_uint32(count), ctypes.c_uint32(seed)


def _differing(seen: bytes, expected: bytes) -> int:
    """Words that differ. Equal buffers, the rule, are compared at once."""
    if seen == expected:
        return 0
    words = memoryview(seen).cast("I"), memoryview(expected).cast("I")
    return sum(one != other for one, other in zip(*words, strict=True))


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """`count`, `smoke INDEX` or `pairs INDEX INDEX …`; 1 and the driver's words on stderr where it refuses."""
    phase, *indices = arguments
    try:
        if phase == "count":
            _say({"count": Cuda().count()})
        elif phase == "smoke":
            smoke(int(indices[0]))
        else:
            pairs([int(index) for index in indices])
    except (CudaError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
