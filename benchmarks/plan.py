"""What `plan` costs for many hosts against one.

    python benchmarks/plan.py INVENTORY ONE MANY [REPETITIONS]

ONE: a host; MANY: a pattern, for example of eight lab hosts, which share the controller's processors. Whole commands
are measured, from nothing, in turns; prints the median seconds and their ratio (wanted: at most 3).

2026-11-30, eight lab hosts on two cores: at rest 1.01 s and 1.81 s, ratio 1.78 (5 repetitions); at a load of 27, 2.97.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def main(source: Path, patterns: tuple[str, str], repetitions: int) -> None:
    """Measure both, after one start of each that fills caches."""
    seconds: dict[str, list[float]] = {pattern: [] for pattern in patterns}
    for turn in range(repetitions + 1):
        for pattern in patterns:
            began = time.monotonic()
            done = subprocess.run(
                [CHECKOUT / "invoke", "plan", "--host", pattern, "--inventory", source],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            took = time.monotonic() - began
            if done.returncode not in (0, 3):
                sys.exit(done.stdout + done.stderr)
            if turn:
                seconds[pattern].append(took)
    print(f"{repetitions} repetitions, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for pattern, values in seconds.items():
        print(f"{pattern:16} {statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f})")
    one, many = (statistics.median(seconds[pattern]) for pattern in patterns)
    print(f"ratio of many to one {many / one:.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).absolute(), (sys.argv[2], sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 5)
