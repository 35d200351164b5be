"""What the runbook engine adds to a step: no-op steps as a run, against the same bodies as plain subprocesses.

    python benchmarks/runbook_overhead.py [STEPS] [REPETITIONS]

A run's step has a supervisor, a worker with a context, evidence on disk and four durable journal events; the plain
subprocess has none of that. Both start one Python per step. Prints the median and spread of the milliseconds a step,
their difference and their ratio. Needs the controller's environment; leaves nothing behind.
"""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aerie.runbook import runner

BODY = '''from aerie.runbook.step import Context, Json

doc = "Nothing."


def run(context: Context) -> Json:
    return {"nothing": 0}
'''
PROFILE = "from pydantic import BaseModel\n\n\nclass Profile(BaseModel):\n    pass\n"


def main(steps: int, repetitions: int) -> None:
    """Measure both, interleaved, so that other work on the machine meets both alike."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        sys.path.insert(0, name)
        _write(folder, steps)
        run_ms, plain_ms = [], []
        for _ in range(repetitions):
            plain_ms.append(_plain(folder, steps))
            run_ms.append(_run(folder, steps))
    added = [run - plain for run, plain in zip(run_ms, plain_ms, strict=True)]
    ratio = statistics.median(run_ms) / statistics.median(plain_ms)
    print(f"{steps} steps, {repetitions} repetitions, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for label, values in (("as a run", run_ms), ("plain subprocess", plain_ms), ("added", added)):
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{label:18} {middle:7.1f} ms a step ({low:.1f} to {high:.1f})")
    print(f"ratio              {ratio:7.2f}")


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


def _run(folder: Path, steps: int) -> float:
    began = time.perf_counter()
    result = runner.run("noop", directory=folder / "runbooks", again=True)
    seconds = time.perf_counter() - began
    assert len(result.ran) == steps, result
    return 1000 * seconds / steps


def _plain(folder: Path, steps: int) -> float:
    began = time.perf_counter()
    for number in range(steps):
        body = f"import json, noop.step{number} as step; print(json.dumps(step.run(None)))"
        subprocess.run([sys.executable, "-c", body], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] or ["20", "5"])))
