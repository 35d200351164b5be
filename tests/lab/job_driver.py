"""Runs on a lab host: one call of aerie.runbook.jobs, its answer as JSON. Standard library only.

python3 job_driver.py start FOLDER UNIT TIMEOUT_S VALUES [hold]   → the job, and this process's pid
python3 job_driver.py find FOLDER JOB                             → whether it is alive
python3 job_driver.py stop FOLDER JOB                             → whether it ended within 50 s
python3 job_driver.py wait FOLDER JOB                             → whether it ended within 50 s
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.runbook import jobs


def main(verb: str, folder: Path, *rest: str) -> dict[str, Any]:
    """What the verb's line in the head of this file says."""
    if verb == "start":
        return start(folder, *rest)
    started = json.loads(rest[0])
    if verb == "find":
        return {"alive": jobs.find(folder, started) is not None}
    job = jobs.Job(folder=folder, **started)
    if verb == "stop":
        jobs.stop(job)
    return {"ended": jobs.wait(job, 50)}


def start(folder: Path, unit: str, timeout_s: str, values: str, *flags: str) -> dict[str, Any]:
    """Start aerie's own worker on the step beside this file."""
    for path in (folder / "out", folder / "scratch"):
        path.mkdir(parents=True, exist_ok=True)
    job = {"run": "r1", "step": "s1", "attempt": 1, "module": "job_step", "values": json.loads(values)}
    (folder / "job.json").write_text(
        json.dumps({**job, "inputs": {}, "interpreters": {}, "kept": str(folder / "kept")})
    )
    worker = [sys.executable, "-P", "-m", "aerie.runbook.worker", str(folder)]
    try:
        started = jobs.start(folder, worker, dict(os.environ), unit=unit, timeout_s=float(timeout_s), stall_s=None)
    except AerieError as error:
        return {"refused": str(error)}
    return {"job": started.to_dict(), "driver": os.getpid()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])), flush=True)
    if sys.argv[-1] == "hold":
        time.sleep(600)
