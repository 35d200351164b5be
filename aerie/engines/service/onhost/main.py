"""The verbs of services on a host. Those of controllers print one JSON document; those of units write to the journal.

look         question on stdin → what there is
arguments    services of one engine on stdin → {"problems"}: for each what that engine's own parser says, or null
start FOLDER {"model", "to", "accept_fall", "is_tried"} on stdin → {"job"}: a change as a job, which outlives who asks
poll FOLDER  → {"job", "progress", "outcome", "log"}
stop MODEL   → {"state"}: nothing serves the model any more
judge MODEL  → {"acceptance"}: what serves it, held against its last good run; null without a drafter
switch SPEC FOLDER               the job itself
gates FILE · run FILE SLOT · ready FILE SLOT      what a unit calls
"""

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from aerie.errors import AerieError
from aerie.runbook import hostjobs
from aerie.runbook.step import write_atomic

from . import front, look, parsing, regression, state, trial, unit, units
from .definition import SLOTS, Slot, load, unit_of
from .state import Change
from .switch import Switch, key_of

__all__ = ["main"]


class _Stopped(Exception):
    """Somebody asked the change to end."""


def main(arguments: Sequence[str]) -> int:
    """Run one verb; its exit code."""
    verb, *rest = arguments
    if verb == "gates":
        return unit.check_gates(Path(rest[0]), Path(sys.path[0], "probe.py"))
    if verb == "run":
        unit.run(Path(rest[0]), _slot(rest[1]))
    if verb == "ready":
        return unit.wait_ready(Path(rest[0]), _slot(rest[1]))
    if verb == "switch":
        return _switch(Path(rest[0]), Path(rest[1]))
    try:
        document = _answer(verb, rest)
    except AerieError as error:
        document = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(document) + "\n")
    return 1 if "error" in document else 0


def _answer(verb: str, rest: Sequence[str]) -> dict[str, Any]:
    if verb == "look":
        return look.look(json.load(sys.stdin))
    if verb == "arguments":
        return {"problems": parsing.problems(json.load(sys.stdin))}
    if verb == "start":
        return hostjobs.start(Path(rest[0]), sys.stdin.buffer.read(), "switch")
    if verb == "poll":
        return hostjobs.poll(Path(rest[0]))
    if verb == "stop":
        return _stop(rest[0])
    if verb == "judge":
        return {"acceptance": _judge(rest[0])}
    raise AerieError("verb", seen=verb, expected="one of look, arguments, start, poll, stop, judge", remedy="")


def _switch(spec: Path, folder: Path) -> int:
    told = json.loads(spec.read_bytes())

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped("it was asked to end")

    def say(phase: str) -> None:
        sys.stdout.write(f"{state.now()} {phase}\n")
        sys.stdout.flush()
        write_atomic(folder / "progress.json", json.dumps({"phase": phase}).encode())

    signal.signal(signal.SIGTERM, on_signal)
    try:
        change = Switch(
            model=told["model"],
            to=_slot(told["to"]),
            say=say,
            accept_fall=told.get("accept_fall", False),
            is_tried=told.get("is_tried", True),
        ).run()
    except AerieError as error:
        write_atomic(folder / "outcome.json", json.dumps({"error": error.to_dict()}).encode())
        return 1
    write_atomic(folder / "outcome.json", json.dumps(asdict(change)).encode())
    return 0 if change.outcome == "switched" else 1


def _stop(model: str) -> dict[str, Any]:
    before = state.read(model)
    for slot in SLOTS:
        if load(model, slot) is not None:
            units.stop(unit_of(model, slot))
            units.enable(unit_of(model, slot), at_boot=False)
    if before.live is not None:
        front.lead(model, None)
        service = load(model, before.live)
        was = f"{before.live}: {service.words if service else ''}"
        change = Change(at=state.now(), outcome="stopped", to="", before=was, why="", seconds=0.0)
        state.write(before.after(change, live=None, previous=before.live))
    return {"state": state.read(model).to_dict()}


def _judge(model: str) -> dict[str, Any] | None:
    live = state.read(model).live
    service = load(model, live) if live else None
    if live is None or service is None or not service.drafter:
        return None
    # An upgrade changes the environment below a slot: the version that counts is the one that is there now.
    there = look.engines(Path(service.program[0]).parent.parent)
    version = there.get(service.engine) or there.get(f"{service.engine}-cpu") or service.version
    url = f"http://127.0.0.1:{service.port_of(live)}"
    run = trial.measure(replace(service, version=version), url, key_of(model))
    verdict = regression.judge(run, regression.good_runs(model))
    if not verdict.fell:
        regression.keep(model, run)
    return verdict.to_dict()


def _slot(word: str) -> Slot:
    if word not in SLOTS:
        raise AerieError("slot", seen=word, expected="blue or green", remedy="")
    return "blue" if word == "blue" else "green"
