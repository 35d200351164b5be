"""The proof of a host's GPUs: every part in processes of its own that are ended at their limit, their whole group.

A hang is what this looks for, so nothing here waits without an end, and what hung is in the answer by name.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ending import end

__all__ = ["main", "prove"]

SCHEMA = "aerie.gpu-proof/1"
LAST_WORDS = 12  # lines of a process that failed
COLLECTIVE = Path(__file__).with_name("collective.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How processes that belong together ended. answers: their lines of JSON; error: last words of the first that
    failed, "" when none did; is_late: they were killed at the limit; is_stuck: even that did not end them.
    """

    answers: list[dict[str, Any]]
    error: str
    is_late: bool
    is_stuck: bool
    wall_s: float


def prove(*, python: str, limit_s: float, is_collective: bool) -> dict[str, Any]:
    """Prove all GPUs that CUDA sees. python: an interpreter with torch, "" for none; limit_s: for each part."""
    this = [sys.executable, "-I", "-S", sys.argv[0]]
    counted = _run([[*this, "phase", "count"]], limit_s)
    proof: dict[str, Any] = {"schema": SCHEMA, "limit_s": limit_s, "start": _ending(counted)}
    count = counted.answers[0]["count"] if counted.answers else 0
    smokes = [_run([[*this, "phase", "smoke", str(index)]], limit_s) for index in range(count)]
    proof["gpus"] = [
        {"index": index, **_ending(smoke), **(smoke.answers[0] if smoke.answers else {})}
        for index, smoke in enumerate(smokes)
    ]
    sound = [str(index) for index, smoke in enumerate(smokes) if smoke.answers and not smoke.is_late]
    tried = _run([[*this, "phase", "pairs", *sound]], limit_s) if len(sound) > 1 else None
    proof["pairs"] = _pairs(tried) if tried else []
    proof["collective"] = None
    # A link that hung has left its GPUs busy: a collective over them could only hang as well.
    if is_collective and python and count > 1 and len(sound) == count and tried and not tried.is_late:
        proof["collective"] = _collective(python, count, limit_s)
    return proof


def _pairs(tried: Ended) -> list[dict[str, Any]]:
    """The pairs that were tried. Of the last one there is only how it ended, where it did not answer."""
    done = [answer for answer in tried.answers if "from" in answer]
    begun = [answer["trying"] for answer in tried.answers if "trying" in answer]
    if len(begun) > len(done):
        done.append({"from": begun[-1][0], "to": begun[-1][1], **_ending(tried)})
    return done


def _collective(python: str, world: int, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="aerie-gpus-") as folder:
        ranks = [[python, str(COLLECTIVE), str(rank), str(world), f"{folder}/meeting"] for rank in range(world)]
        ended = _run(ranks, limit_s)
    ranks_done = sorted(ended.answers, key=lambda answer: answer["rank"])
    return {"world": world, "ranks": ranks_done, **_ending(ended)}


def _ending(ended: Ended) -> dict[str, Any]:
    return {"error": ended.error, "is_late": ended.is_late, "is_stuck": ended.is_stuck, "wall_s": ended.wall_s}


def _run(commands: Sequence[Sequence[str]], limit_s: float) -> Ended:
    """Run them beside each other, each in a session of its own; all are ended when the time is up or one fails."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as NVML counts them
    started, deadline = time.monotonic(), time.monotonic() + limit_s
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        processes = [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
            for command in commands
        ]
        codes: list[int | None] = [None] * len(processes)
        while None in codes and not any(codes) and time.monotonic() < deadline:
            time.sleep(0.02)
            codes = [process.poll() for process in processes]
        is_late = None in codes and not any(codes)
        stuck = [process for process in processes if not end(process)]
        out.seek(0)
        err.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
        words = "\n".join(err.read().decode(errors="replace").splitlines()[-LAST_WORDS:])
    answers = []
    for line in lines:
        with suppress(json.JSONDecodeError):  # a line that a kill cut short
            answers.append(json.loads(line))
    error = ""
    if any(codes):
        error = words or f"ended with status {next(code for code in codes if code)}"
    elif is_late:
        error = f"no answer within {limit_s:g} s"
    return Ended(
        answers=answers,
        error=error,
        is_late=is_late,
        is_stuck=bool(stuck),
        wall_s=round(time.monotonic() - started, 2),
    )


def main(arguments: Sequence[str]) -> int:
    """`prove` takes a request as JSON on stdin and answers with the proof as JSON; `phase …` is one part of it."""
    if arguments[0] == "phase":
        from .phases import main as phase

        return phase(arguments[1:])
    request = json.load(sys.stdin)
    json.dump(prove(**request), sys.stdout)
    return 0
