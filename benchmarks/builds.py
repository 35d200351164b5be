"""Builds of CUDA extensions: a second one from the compiler cache, and the number of jobs that is chosen for a host.

    python benchmarks/builds.py [--most 3] [--repetitions 1] [--folder FOLDER]

Four real compiling units of flash-attn (backward, forward, split; head size 32) for sm_120, with nvcc 13.1 from wheels,
through the builder as a host runs it: limit of memory, gate, compiler cache. Needs g++, ccache, a package index and, to
enforce the limit, root. About 10 minutes of two quiet cores: the same units are compiled once with the jobs that
`sizing` chooses here, and once with 1, 2 … `--most` jobs whatever memory there is; the gate holds those back that do
not fit, as it would on a host. All begin without a cache but the second build.
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie.extensions import capacity, cuda_home  # noqa: E402  (the line above makes it importable)
from aerie.extensions.onhost.build import build  # noqa: E402
from aerie.extensions.onhost.request import Request, Result  # noqa: E402
from aerie.extensions.sizing import size  # noqa: E402
from aerie.extensions.units import unit_memory  # noqa: E402
from tests.engine import cuda_units  # noqa: E402

FROM_CACHE = 10.0  # the first build's time is at least so many times the second's
AGAINST_BEST = 1.15  # the chosen number of jobs takes at most so many times the best one
UNITS = (*cuda_units.UNITS, "flash_fwd_hdim32_fp16_causal_sm80")
GB = 1e9


def main(most: int, repetitions: int, folder: Path) -> None:
    """Measure in turns, and print each build, then both ratios."""
    memory = unit_memory("flash-attn", version=cuda_units.FLASH, cuda="13.1", architectures=["12.0"])
    sizing = size(capacity.read(), memory)
    print(
        f"{len(UNITS)} units, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}. {sizing.reasons[0]}"
    )
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        python = cuda_units.environment(scratch / "env")
        chosen = Request(
            package="flash-attn", version=cuda_units.FLASH, python=python, cuda_home=cuda_home.ensure(),
            source=cuda_units.source(scratch, python, UNITS), architectures=("12.0",), jobs=sizing.jobs,
            nvcc_threads=sizing.nvcc_threads, budget_bytes=sizing.budget_bytes, unit_bytes=memory.bytes_per_thread,
            work=scratch / "work", out=scratch / "out",
        )  # fmt: skip
        walls: dict[str, list[float]] = {}
        for turn in range(repetitions):
            cached = replace(chosen, compiler_cache=scratch / f"cache{turn}")
            asked = {"chosen": cached, "chosen, again": cached}
            asked |= {f"{jobs} jobs": replace(chosen, jobs=jobs) for jobs in range(1, most + 1)}
            for label, request in asked.items():
                walls.setdefault(label, []).append(_build(label, request, scratch / "job").wall_s)
    _judge({label: statistics.median(seconds) for label, seconds in walls.items()})


def _build(label: str, request: Request, job: Path) -> Result:
    job.mkdir(exist_ok=True)
    result = build(request, job)
    if result.failure is not None:
        sys.exit(str(result.failure))
    print(
        f"{label:14} {result.wall_s:7.1f} s, CPU {result.cpu_s:7.1f} s, peak {result.peak_bytes / GB:5.2f} of "
        f"{request.budget_bytes / GB:5.2f} GB, {result.units_compiled} compiled, {result.units_cached} from the cache, "
        f"held back {result.held_back_s:6.1f} s, again {result.units_again}"
    )
    return result


def _judge(walls: dict[str, float]) -> None:
    ratio = walls["chosen"] / walls["chosen, again"]
    print(
        f"from the cache: {ratio:.1f} times faster, target {FROM_CACHE:g}: {'met' if ratio >= FROM_CACHE else 'MISSED'}"
    )
    best = min((label for label in walls if label.endswith("jobs")), key=walls.__getitem__)
    ratio = walls["chosen"] / walls[best]
    verdict = "met" if ratio <= AGAINST_BEST else "MISSED"
    print(f"chosen jobs: {ratio:.2f} times the best fixed number ({best}), target {AGAINST_BEST}: {verdict}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=3, help="the largest fixed number of jobs")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on a disk with 2 GB free")
    given = parser.parse_args()
    main(given.most, given.repetitions, given.folder)
