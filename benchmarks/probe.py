"""What a snapshot costs: one host, and many at once, against a plain `ssh HOST true`.

    python benchmarks/probe.py INVENTORY [PATTERN] [COUNT] [REPETITIONS]

COUNT hosts are probed at once, 8 by default; where the inventory has fewer, each is asked several times. Prints the
median and the spread of the wall time, the probe's own time on the host, and the ratios. Lab hosts share the
controller's processors, real ones do not: there, the ratio of many to one is what remains of the connections.
"""

import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie import inventory, remote  # noqa: E402  (the line above makes it importable)
from aerie.errors import AerieError  # noqa: E402


def main(path: Path, pattern: str, count: int, repetitions: int) -> None:
    """Measure all three, interleaved, so that other work on the machine meets them alike."""
    found = inventory.select(pattern, path)
    many = [
        replace(host, name=f"{host.name}-{n}") for n, host in enumerate(itertools.islice(itertools.cycle(found), count))
    ]
    remote.probe(found[0])  # makes the script, and imports what is imported late
    logins, ones, alls, on_host = [], [], [], []
    for _ in range(repetitions):
        logins.append(_seconds(lambda: remote.run(found[0], ["true"])))
        ones.append(_seconds(lambda: on_host.append(remote.probe(found[0]).probe_s)))
        alls.append(_seconds(lambda: _all(many)))
    print(f"{len(found)} hosts, {repetitions} repetitions, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    labels = (
        ("a program that does nothing", logins),
        ("snapshot of one host", ones),
        (f"snapshots of {count} hosts", alls),
    )
    for label, values in (*labels, ("of it on the host", on_host)):
        print(f"{label:28} {statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f})")
    print(f"ratio of {count} hosts to one      {statistics.median(alls) / statistics.median(ones):6.2f}")
    print(f"ratio of a snapshot to nothing {statistics.median(ones) / statistics.median(logins):5.2f}")


def _all(hosts: list[inventory.Host]) -> None:
    for name, answer in remote.probe_all(hosts).items():
        if isinstance(answer, AerieError):
            sys.exit(f"{name}: {answer}")


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    words = sys.argv[2:]
    main(
        Path(sys.argv[1]),
        words[0] if words else "all",
        int(words[1]) if len(words) > 1 else 8,
        int(words[2]) if len(words) > 2 else 5,
    )
