"""What the runbook engine adds to a step: no-op steps as a run, against the same bodies as plain subprocesses.

    python benchmarks/runbook_overhead.py [STEPS] [REPETITIONS]

A run's step has a supervisor, a worker with a context, evidence on disk and four durable journal events; the plain
subprocess has none of that. Both start one Python per step. Prints the median and spread of the milliseconds a step,
their difference and their ratio. Needs the controller's environment; leaves nothing behind.
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie.runbook import runner  # noqa: E402  (the line above makes it importable)

BODY = """from aerie.runbook.step import Context, Json

doc = "Nothing."


def run(context: Context) -> Json:
    return {"nothing": 0}
"""
PROFILE = "from pydantic import BaseModel\n\n\nclass Profile(BaseModel):\n    pass\n"


def main(steps: int, repetitions: int) -> None:
    """Measure both, interleaved, so that other work on the machine meets both alike."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        sys.path.insert(0, name)
        _write(folder, steps)
        runs, plains = [], []
        for _ in range(repetitions):
            plains.append(_cost(lambda: _plain(folder, steps), steps))
            runs.append(_cost(lambda: _run(folder, steps), steps))
    print(f"{steps} steps, {repetitions} repetitions, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for column, label in enumerate(("wall", "processor")):
        run_ms, plain_ms = [row[column] for row in runs], [row[column] for row in plains]
        added_ms = [run - plain for run, plain in zip(run_ms, plain_ms, strict=True)]
        for name, values in (("as a run", run_ms), ("plain subprocess", plain_ms), ("added", added_ms)):
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"{label:10} {name:17} {middle:7.1f} ms a step ({low:.1f} to {high:.1f})")
        print(f"{label:10} ratio             {statistics.median(run_ms) / statistics.median(plain_ms):7.2f}")


def _cost(work: Callable[[], None], steps: int) -> tuple[float, float]:
    """Wall and processor milliseconds a step, the processes that it started included."""
    began, used = time.perf_counter(), _processor_s()
    work()
    return 1000 * (time.perf_counter() - began) / steps, 1000 * (_processor_s() - used) / steps


def _processor_s() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _write(folder: Path, steps: int) -> None:
    (folder / "noop").mkdir()
    (folder / "noop" / "profile.py").write_text(PROFILE)
    book = folder / "runbooks" / "noop"
    (book / "profiles").mkdir(parents=True)
    (book / "profiles" / "none.yml").write_text("{}\n")
    lines = ["schema: aerie.runbook/1", "name: noop", "title: Nothing", "profile: noop.profile:Profile"]
    lines += ["default_profile: none", "steps:"]
    for number in range(steps):
        (folder / "noop" / f"step{number}.py").write_text(BODY)
        lines.append(f"  - {{id: step{number}, title: Nothing, module: noop.step{number}, timeout_s: 60}}")
    (book / "runbook.yml").write_text("\n".join(lines) + "\n")


def _run(folder: Path, steps: int) -> None:
    result = runner.run("noop", directory=folder / "runbooks", again=True)
    assert len(result.ran) == steps, result


def _plain(folder: Path, steps: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(CHECKOUT)])}
    for number in range(steps):
        body = f"import json, noop.step{number} as step; print(json.dumps(step.run(None)))"
        subprocess.run([sys.executable, "-c", body], check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] or ["20", "5"])))
