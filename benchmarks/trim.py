"""What trimming a CMake build to one architecture saves: units compiled as the project has them, and trimmed.

    python benchmarks/trim.py --default DIR --trimmed DIR --unit NAME [--unit NAME …] [--threads 1] [--json FILE]

DIR: two configured build folders with compile_commands.json (CMAKE_EXPORT_COMPILE_COMMANDS=ON), of which nothing need
be built. Each unit is compiled by its own command in both, one at a time; the output is removed. --threads: nvcc's, in
place of the command's own, so that both take memory for one architecture at a time; 0 leaves it as it is. Processor
time is of all processes of the unit; the peak is the most that they held together, looked at ten times a second.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aerie.extensions.onhost.gate import tree_bytes

POLL_S = 0.1
GENCODE = re.compile(r"code=(sm_\w+)")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One unit, compiled once. size_bytes: of the object."""

    unit: str
    architectures: tuple[str, ...]
    cpu_s: float
    wall_s: float
    peak_bytes: int
    size_bytes: int


def command_of(folder: Path, unit: str) -> dict[str, Any]:
    """The database's entry of a unit by the end of its path; of several targets' the last, the one for newer cards."""
    rows = json.loads((folder / "compile_commands.json").read_text())
    mine = [row for row in rows if row["file"].endswith(f"/{unit}") and GENCODE.search(row["command"])]
    if not mine:
        sys.exit(f"{folder}: no {unit} for a GPU among {len(rows)} files")
    found: dict[str, Any] = mine[-1]
    return found


def compile_once(folder: Path, unit: str, threads: int) -> Compiled:
    """Run the unit's command to its end."""
    row = command_of(folder, unit)
    argv = shlex.split(row["command"])
    if threads:
        argv = [re.sub(r"^--threads=\d+$", f"--threads={threads}", word) for word in argv]
    out = Path(row["directory"], argv[argv.index("-o") + 1])
    out.parent.mkdir(parents=True, exist_ok=True)
    began, peak, pid = time.monotonic(), 0, 0
    child = subprocess.Popen(argv, cwd=row["directory"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not pid:
        time.sleep(POLL_S)
        peak = max(peak, tree_bytes(child.pid))
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.stderr is not None
    if child.returncode:
        sys.exit(f"{unit}: {child.stderr.read().decode(errors='replace')[-3000:]}")
    size_bytes = out.stat().st_size
    out.unlink()
    return Compiled(
        unit=unit,
        architectures=tuple(GENCODE.findall(row["command"])),
        cpu_s=round(usage.ru_utime + usage.ru_stime, 1),
        wall_s=round(time.monotonic() - began, 1),
        peak_bytes=peak,
        size_bytes=size_bytes,
    )


def main() -> None:
    """Measure every unit, trimmed first, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--default", type=Path, required=True)
    parser.add_argument("--trimmed", type=Path, required=True)
    parser.add_argument("--unit", action="append", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept = []
    for unit in given.unit:
        trimmed = compile_once(given.trimmed, unit, given.threads)
        print(tell(trimmed), flush=True)
        default = compile_once(given.default, unit, given.threads)
        print(tell(default), flush=True)
        ratios = {
            "cpu": default.cpu_s / trimmed.cpu_s,
            "peak": default.peak_bytes / trimmed.peak_bytes,
            "object": default.size_bytes / trimmed.size_bytes,
        }
        print(f"  default / trimmed: {', '.join(f'{name} {ratio:.2f}' for name, ratio in ratios.items())}", flush=True)
        kept.append({"trimmed": asdict(trimmed), "default": asdict(default), "ratios": ratios})
        if given.json:
            given.json.write_text(json.dumps(kept, indent=1) + "\n")


def tell(one: Compiled) -> str:
    """One line."""
    names = " ".join(one.architectures)
    return f"{one.unit} [{names}]: {one.cpu_s} s of processor, {one.wall_s} s, peak {one.peak_bytes / 1e9:.2f} GB"


if __name__ == "__main__":
    main()
