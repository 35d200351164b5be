"""Verification alone: bytes a second of the staging's hashing processes, against openssl's own rate for a core.

    python benchmarks/hashing.py [--mib 512] [--repetitions 3] [--folder FOLDER]

1, 2, 4 … processes up to the number of cores hash a file each, from the page cache, as a staging does: start of the
process and fsync included. The limit is `openssl speed sha256` with blocks of 16 KiB, in turns with
them. It counts processor time, so the ratio does too: GB for a second of a processor. Needs openssl.
"""

import argparse
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie.weights.onhost import hash_file  # noqa: E402  (the line above makes it importable)

TARGET = 0.85  # of openssl's rate, for each core


def main(mib: int, repetitions: int, folder: Path) -> None:
    """Measure in turns, and print each number of processes with its share of the limit."""
    if shutil.which("openssl") is None:
        sys.exit("missing: openssl (apt-get install openssl)")
    cores = len(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= cores]
    limits: list[float] = []
    rates: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        paths = [Path(name) / str(number) for number in range(counts[-1])]
        for path in paths:
            with open(path, "wb") as file:
                file.write(os.urandom(mib << 20))
                os.fsync(file.fileno())  # not sync: that waits for whatever else is written on the machine
        for _ in range(repetitions):
            limits.append(_openssl())
            for count in counts:
                rates[count].append(_hash(paths[:count], mib << 20))
    print(f"{mib} MiB a file, {repetitions} repetitions, Python {platform.python_version()}, {cores} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"openssl speed: {statistics.median(limits):.2f} GB for a processor second")
    for count, runs in rates.items():
        wall, used = (statistics.median(run[column] for run in runs) for column in (0, 1))
        ratio = statistics.median(run[1] / limit for run, limit in zip(runs, limits, strict=True))
        verdict = "met" if ratio >= TARGET else "MISSED"
        print(f"{count:3} processes: {wall:5.2f} GB/s, {used:5.2f} GB for a processor second; "
              f"ratio to openssl {ratio:5.2f}, target {TARGET}: {verdict}")  # fmt: skip


def _openssl() -> float:
    argv = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "sha256"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"([\d.]+)k", said)[-1]) * 1000 / 1e9


def _hash(paths: list[Path], size: int) -> tuple[float, float]:
    """(GB/s, GB for a processor second) of one process for each path, all at once."""
    began, used = time.perf_counter(), _processor_s()
    argv = [sys.executable, "-I", "-S", hash_file.__file__, "sha256", str(size)]
    running = [subprocess.Popen([*argv, str(path)], stdout=subprocess.PIPE, text=True) for path in paths]
    for process in running:
        if not process.communicate()[0] or process.returncode:
            sys.exit("a hashing process failed")
    gb = len(paths) * size / 1e9
    return gb / (time.perf_counter() - began), gb / (_processor_s() - used)


def _processor_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    main(given.mib, given.repetitions, given.folder)
