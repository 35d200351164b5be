"""What a step's code is given, and what it gives back. Standard library only: it runs in every environment.

A step is a module with

    doc: str                                             how an operator does this by hand (Markdown)
    run(context: Context) -> Mapping[str, Json]          the work; what it returns is the step's evidence
    gate(evidence, values) -> Verdict                    optional, pure: may the run go on?
    stale(evidence) -> str | None                        optional, quick: why what was made outside of the
                                                         step's own folder no longer serves (None: it does)
    budget(profile, measured) -> Budget                  optional, pure: what it will take (aerie/runbook/budget.py)

`run` is called in a process of its own, in the step's environment; `gate`, `stale` and `budget` are called by
the controller, so the module must import without the step's heavy libraries (import those inside functions).
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["Context", "Decision", "Input", "Json", "Verdict", "go", "stop", "write_atomic"]

Json = Any  # what json.dumps accepts; checked when the evidence is written


class Decision(StrEnum):
    """What a gate may say."""

    GO = "go"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A gate's answer. reasons: one sentence each, with what was seen and what is allowed."""

    decision: Decision
    reasons: tuple[str, ...] = ()


def go(*reasons: str) -> Verdict:
    """The run goes on."""
    return Verdict(decision=Decision.GO, reasons=reasons)


def stop(*reasons: str) -> Verdict:
    """The run stops here until someone approves with a reason or the step runs again with another result."""
    return Verdict(decision=Decision.STOP, reasons=reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a needed step left: its artifact folder and its evidence, both verified by hash before they are given."""

    path: Path
    evidence: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything a step may read, and the places where it may write.

    values: the profile values that the step declared, nested as in the profile and already validated.
    out: an empty folder; every file left there becomes an artifact with a sha256.
    scratch: an empty folder for what need not be kept; removed when the attempt ends.
    kept: a folder for work that a later attempt of the same step with the same inputs goes on from, however this one
    ends; removed when the step is done. What lies there may be cut short: write to another name and rename.
    interpreters: the Python of each environment that is installed, by name.
    """

    run: str
    step: str
    attempt: int
    values: Mapping[str, Json]
    inputs: Mapping[str, Input]
    out: Path
    scratch: Path
    kept: Path
    interpreters: Mapping[str, Path]
    progress_file: Path

    def progress(self, done: float, total: float | None = None, *, unit: str, note: str = "") -> None:
        """Say how far the work is. The watchdog kills a step whose `done` and `note` stop changing.

        done, total: in `unit` ("steps", "prompts", "bytes"); total is None while it is unknown.
        """
        record = {"at": time.time(), "done": done, "total": total, "unit": unit, "note": note}
        write_atomic(self.progress_file, json.dumps(record).encode(), durable=False)


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` at `path` so that a reader sees all of it or none: temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(temporary, path)
