"""What is kept of a trouble before anything is changed: stacks, states, GPUs, log. Best effort, within a minute."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from aerie.engines.watchdog.diagnosis import Diagnosis
from aerie.engines.watchdog.observation import Observation
from aerie.engines.watchdog.service import Service

__all__ = ["KEPT", "collect"]

KEPT = 30  # incidents; the oldest are removed
STACK_S, STACKS, THREADS = 10.0, 16, 64
LOG_LINES = 400


def collect(folder: Path, name: str, found: Diagnosis, seen: Sequence[Observation], service: Service) -> Path:
    """Write a folder of this name below `folder`; gives its path. What cannot be read is left out and said so."""
    _thin_out(folder)
    made = folder / name
    made.mkdir(parents=True, exist_ok=True)
    log = service.log(LOG_LINES)
    document = {
        "schema": "aerie.watchdog.incident/1",
        "kind": found.kind.value,
        "reason": found.reason,
        "advice": list(found.advice),
        "observations": [asdict(one) for one in seen],
    }
    (made / "incident.json").write_text(json.dumps(document, indent=1) + "\n")
    (made / "log.txt").write_text("\n".join(log) + "\n")
    nccl = [line for line in log if "NCCL" in line or "nccl" in line]
    (made / "nccl.txt").write_text("\n".join(nccl) + "\n")
    (made / "stacks.txt").write_text(_stacks([one.pid for one in seen[-1].processes]))
    (made / "kernel.txt").write_text(_said("journalctl", "--dmesg", "--no-pager", "--lines=40", "--output=short-iso"))
    return made


def _stacks(pids: Iterable[int]) -> str:
    """Of each process: where it stands in the kernel, and its Python stacks by py-spy where that is installed."""
    beside = Path(sys.executable).parent  # the engine's environment, whose interpreter this is
    spy = shutil.which("py-spy", path=os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)]))
    parts = [] if spy else ["py-spy is not installed: no Python stacks\n"]
    for number, pid in enumerate(pids):
        parts.append(f"== {pid}\n")
        parts += [
            f"{task.name} {_read(task / 'comm')} {_read(task / 'wchan')}\n{_read(task / 'stack')}\n"
            for task in sorted(Path(f"/proc/{pid}/task").glob("*"))[:THREADS]
        ]
        if spy and number < STACKS:
            # Without stopping it: a process that a signal stopped would keep py-spy waiting.
            parts.append(_said(spy, "dump", "--nonblocking", "--pid", str(pid)))
    return "".join(parts)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _said(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=STACK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]}: {error}\n"
    return done.stdout + done.stderr


def _thin_out(folder: Path) -> None:
    if folder.exists():
        for old in sorted(os.listdir(folder))[: -KEPT + 1]:
            shutil.rmtree(folder / old, ignore_errors=True)
