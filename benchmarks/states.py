"""Keeping hidden states: bytes kept for each byte, and the rate, against what SpecForge 0.2.0 does to compress.

    python benchmarks/states.py FOLDER [--mib 64] [--repetitions 3]

FOLDER holds state files of a run: results/synthesize-…/states in its folder. Their states are put together to one
sample of `--mib`, for a file of the tiny profile is too small to time. It is packed and read again by one core,
checksums included; the peer is gzip's level 6 over the same numbers. Rates are of the numbers' own bytes, for a second
of a processor.

The limit to keep up with: a capture at 3,165 tokens/s writes 57,344 bytes for each, 181 MB/s (docs/engines.md).
"""

import argparse
import gzip
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aerie.engines.states import States, pack, read_kept

TARGET = 0.75  # bytes kept for each byte


def main(folder: Path, mib: int, repetitions: int) -> None:
    """Pack, read and gzip in turns, and print ratios and rates."""
    states = _joined(sorted(folder.glob("*.safetensors")), mib << 20)
    size = len(states.numbers)
    rates: dict[str, list[float]] = {"pack": [], "read": [], "gzip": []}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "kept")
        for _ in range(repetitions):
            kept = _timed(rates["pack"], size, lambda: pack(states))
            path.write_bytes(kept)
            back = _timed(rates["read"], size, lambda: read_kept(path))
            if back != states:
                sys.exit("what was read is not what was packed")
            zipped = _timed(rates["gzip"], size, lambda: gzip.compress(states.numbers, 6))
    ratio = len(kept) / size
    print(f"{size / 1e6:.0f} MB of {states.dtype}, {repetitions} repetitions, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"packed: {ratio:.3f} of the bytes, target {TARGET}: {'met' if ratio <= TARGET else 'MISSED'}; "
          f"gzip: {len(zipped) / size:.3f}")  # fmt: skip
    pack_rate, read_rate, gzip_rate = (statistics.median(rates[name]) for name in ("pack", "read", "gzip"))
    print(f"pack {pack_rate:.0f} MB/s, read {read_rate:.0f} MB/s, gzip {gzip_rate:.0f} MB/s a core: "
          f"packing is {pack_rate / gzip_rate:.1f} times as fast")  # fmt: skip


def _joined(files: list[Path], size: int) -> States:
    """One sample of all the files' states, again and again up to `size` bytes."""
    if not files:
        sys.exit("no state file there: name the folder states of a run's step synthesize")
    parts = [read_kept(file) for file in files]
    once = b"".join(part.numbers for part in parts)
    numbers = once * -(-size // len(once))
    layers, hidden = parts[0].shape[1:]
    positions = len(numbers) // (len(parts[0].numbers) // parts[0].shape[0])
    return States(
        dtype=parts[0].dtype,
        shape=(positions, layers, hidden),
        token_ids=tuple(range(positions)),
        numbers=numbers,
    )


def _timed(rates: list[float], size: int, work: Callable[[], Any]) -> Any:
    start = time.process_time()
    result = work()
    rates.append(size / 1e6 / (time.process_time() - start))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    main(asked.folder, asked.mib, asked.repetitions)
