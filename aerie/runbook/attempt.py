"""One attempt at a step: a job started or found again, watched to its end, its files written down."""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.paths import repository, state_dir
from aerie.runbook import artifacts, events, jobs, keys
from aerie.runbook.interpreters import NAMES, Environments
from aerie.runbook.interrupts import Interrupts
from aerie.runbook.journal import Journal
from aerie.runbook.plan import Finding, Made
from aerie.runbook.spec import Step, module, nest
from aerie.runbook.state import Attempt
from aerie.runbook.step import write_atomic

__all__ = ["Attempts", "Failure"]

POLL_S = 0.2  # between two looks at progress and interrupts; a job's end is heard at once
REPORT_S = 1.0  # between two progress events


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt left no evidence. outcome: failed, timeout, stalled, stopped or lost.

    error: {where, seen, expected, remedy} when the step raised an AerieError. is_seen: this controller saw it
    end; False for one that ended, or was lost, while nobody watched.
    """

    outcome: str
    message: str
    error: Mapping[str, Any] | None = None
    is_seen: bool = True


@dataclass(slots=True)
class _Watch:
    """What was seen of a running attempt's progress."""

    started: float
    changed: float
    said: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    reported: float = 0.0


class Attempts:
    """Makes and settles the attempts of one run."""

    def __init__(
        self, journal: Journal, run: str, chosen: Environments, listener: events.Listener, interrupts: Interrupts
    ) -> None:
        self._journal = journal
        self._chosen = chosen
        self._run = run
        self._say = listener
        self._interrupts = interrupts

    def begin(
        self, step: Step, number: int, finding: Finding, inputs: Mapping[str, Made], expected_s: float | None, *,
        timeout_s: float,
    ) -> Failure | None:  # fmt: skip
        """Run the step once. None when it left its evidence, which is then in the journal."""
        relative = f"runs/{self._run}/{step.id}/{number}"
        folder = state_dir() / relative
        data = {
            "key": finding.key,
            "parts": finding.parts,
            "inputs": {name: made.output for name, made in inputs.items()},
            "reason": finding.reason,
            "folder": relative,
            "timeout_s": timeout_s,
            "stall_s": step.stall_s,
        }
        self._journal.append(self._run, "step.intended", data, step=step.id, attempt=number)
        interpreters = _interpreters(self._chosen)
        if step.environment not in interpreters:
            return self._fail(
                step, number, folder, Failure(outcome="failed", message=f"environment {step.environment} is not made")
            )
        _prepare(folder, self._job(step, number, finding, inputs, interpreters, folder))
        python = interpreters[step.environment]
        job = jobs.start(
            folder,
            [str(python), "-P", "-m", "aerie.runbook.worker", str(folder)],
            _environment(step, python),
            unit=f"aerie-{self._run}-{step.id}-{number}",
            timeout_s=timeout_s,
            stall_s=step.stall_s,
        )
        self._journal.append(self._run, "step.started", job.to_dict(), step=step.id, attempt=number)
        self._say(
            events.StepStarted(
                run=self._run, step=step.id, attempt=number, reason=finding.reason, attached=False,
                log=str(folder / "log"), expected_s=expected_s,
            )
        )  # fmt: skip
        return self._see_through(step, number, job, data, expected_s)

    def settle(self, step: Step, attempt: Attempt, expected_s: float | None, *, wanted: bool) -> Failure | None:
        """Bring an attempt of an earlier controller to its end: its result, its living job, or that it was lost.

        wanted: its job does what the step now asks for; otherwise it is stopped.
        """
        data = attempt.intended.data
        folder = state_dir() / data["folder"]
        job = jobs.find(folder, attempt.started.data if attempt.started else None)
        if job is None:
            failure = self._conclude(step, attempt.number, folder, data)
            return replace(failure, is_seen=False) if failure else None
        if attempt.started is None:
            self._journal.append(self._run, "step.started", job.to_dict(), step=step.id, attempt=attempt.number)
        if not wanted:
            self._end(job)
            return self._conclude(step, attempt.number, folder, data)
        self._say(
            events.StepStarted(
                run=self._run, step=step.id, attempt=attempt.number, reason=data["reason"], attached=True,
                log=str(folder / "log"), expected_s=expected_s,
            )
        )  # fmt: skip
        return self._see_through(step, attempt.number, job, data, expected_s)

    def _see_through(
        self, step: Step, number: int, job: jobs.Job, data: Mapping[str, Any], expected_s: float | None
    ) -> Failure | None:
        now = time.time()
        watch = _Watch(started=_begun(job.folder, now), changed=now)
        while not jobs.wait(job, POLL_S):
            if self._interrupts.count:
                self._end(job)
                break
            self._look(step, number, job.folder, watch, expected_s)
        return self._conclude(step, number, job.folder, data)

    def _look(self, step: Step, number: int, folder: Path, watch: _Watch, expected_s: float | None) -> None:
        now = time.time()
        said = _progress(folder)
        if (said.get("done"), said.get("note")) != (watch.said.get("done"), watch.said.get("note")):
            watch.changed = now
        if said and (not watch.first or said["done"] < watch.first["done"] or said["unit"] != watch.first["unit"]):
            watch.first = said  # another stage of the step counts from its own start
        watch.said = said
        if now - watch.reported < REPORT_S:
            return
        watch.reported = now
        elapsed_s = now - watch.started
        rate = _rate(watch)
        self._say(
            events.StepProgress(
                run=self._run,
                step=step.id,
                attempt=number,
                done=said.get("done"),
                total=said.get("total"),
                unit=said.get("unit", ""),
                note=said.get("note", ""),
                rate=rate,
                eta_s=_eta_s(said, rate, expected_s, elapsed_s),
                age_s=now - watch.changed,
                elapsed_s=elapsed_s,
                stall_s=step.stall_s,
            )
        )

    def _end(self, job: jobs.Job) -> None:
        """Ask the job to stop and wait for it; a second Ctrl-C kills it at once."""
        jobs.stop(job)
        while not jobs.wait(job, POLL_S):
            if self._interrupts.count > 1:
                jobs.kill(job)
        if jobs.read_result(job.folder) is None:
            jobs.sweep(job.folder, grace_s=0, unit=job.unit)
            write_atomic(job.folder / "result.json", json.dumps({"outcome": "stopped"}).encode())

    def _conclude(self, step: Step, number: int, folder: Path, data: Mapping[str, Any]) -> Failure | None:
        """Write down how a job that no longer runs ended."""
        result = jobs.read_result(folder)
        if result is None:
            jobs.sweep(folder, unit=f"aerie-{self._run}-{step.id}-{number}")
            folder.mkdir(parents=True, exist_ok=True)
            jobs.mark_lost(folder)
            result = jobs.Result(outcome="lost")
        shutil.rmtree(folder / "scratch", ignore_errors=True)
        if result.outcome != "ok":
            return self._fail(step, number, folder, _failure(folder, result, data))
        try:
            self._done(step, number, folder, data)
        except AerieError as error:
            said = {"where": error.where, "seen": error.seen, "expected": error.expected, "remedy": error.remedy}
            return self._fail(step, number, folder, Failure(outcome="failed", message=str(error), error=said))
        return None

    def _done(self, step: Step, number: int, folder: Path, data: Mapping[str, Any]) -> None:
        try:
            evidence = (folder / "evidence.json").read_bytes()
        except FileNotFoundError:
            raise AerieError(
                f"step {step.id}", seen="exit code 0 without evidence", expected="run() to return it",
                remedy=f"Read {folder / 'log'}.",
            ) from None  # fmt: skip
        files = artifacts.manifest(folder / "out")
        digest = hashlib.sha256(evidence).hexdigest()
        ended = (folder / "result.json").stat().st_mtime
        seconds = round(max(0.0, ended - _begun(folder, ended)), 3)
        record = {
            **{name: data[name] for name in ("key", "parts", "inputs", "folder", "reason")},
            "output": keys.output_of(digest, files),
            "evidence_sha256": digest,
            "artifacts": files,
            "seconds": seconds,
        }
        self._journal.append(self._run, "step.done", record, step=step.id, attempt=number)
        shutil.rmtree(folder.parent / "kept", ignore_errors=True)  # of this work, and of what was wanted before it
        self._say(
            events.StepDone(
                run=self._run, step=step.id, attempt=number, seconds=seconds, evidence=str(folder / "evidence.json"),
                artifacts=len(files), size_bytes=sum(file["size_bytes"] for file in files),
            )
        )  # fmt: skip

    def _fail(self, step: Step, number: int, folder: Path, failure: Failure) -> Failure:
        lines = jobs.tail(folder)
        record = {"outcome": failure.outcome, "message": failure.message, "error": failure.error, "tail": lines}
        self._journal.append(self._run, "step.failed", record, step=step.id, attempt=number)
        self._say(
            events.StepFailed(
                run=self._run, step=step.id, attempt=number, outcome=failure.outcome, message=failure.message,
                log=str(folder / "log"), tail=lines,
            )
        )  # fmt: skip
        return failure

    def _job(
        self, step: Step, number: int, finding: Finding, inputs: Mapping[str, Made], interpreters: Mapping[str, Path],
        folder: Path,
    ) -> dict[str, Any]:  # fmt: skip
        given = {
            name: {"path": str(made.folder / "out"), "evidence": str(made.folder / "evidence.json")}
            for name, made in inputs.items()
        }
        return {
            "run": self._run,
            "step": step.id,
            "attempt": number,
            "module": step.module,
            "values": nest(dict(finding.parts["values"])),
            "inputs": given,
            "interpreters": {name: str(path) for name, path in interpreters.items()},
            "kept": str(_kept(folder, keys.work_of(finding.key, {name: made.output for name, made in inputs.items()}))),
        }


def _interpreters(chosen: Environments) -> dict[str, Path]:
    found = {"controller": Path(sys.executable)}
    for name in NAMES:
        if (environment := chosen.find(name)) is not None:
            found[name] = environment.python
    return found


def _environment(step: Step, python: Path) -> dict[str, str]:
    """What the worker's process gets: the controller's environment, with this checkout's code."""
    source = module(step).__file__
    assert source is not None, "a step is a module with a file: its code was hashed"
    # The folder that the controller imported the step from, so that the worker runs what was hashed.
    root = Path(source).parents[step.module.count(".")]
    paths = dict.fromkeys([str(root), str(repository())])
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",  # a killed step's last words are in the log
        # vLLM names its processes with setproctitle, which overwrites /proc/PID/environ, and the marker with it.
        "SPT_NOENV": "1",
    }
    if step.environment != "controller":
        # Two OpenMP threads spin for each other: beside one busy core of two, a training step took 17 s, and 0.4 s
        # with one thread (torch 2.13, libgomp). On idle cores the second thread gains a fifth.
        environment["OMP_NUM_THREADS"] = "1"
        environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment


def _kept(folder: Path, work: str) -> Path:
    """The folder that all attempts at the same work have together, beside the attempt's own."""
    return folder.parent / "kept" / work[:16]


def _prepare(folder: Path, job: Mapping[str, Any]) -> None:
    for path in (folder / "out", folder / "scratch"):
        path.mkdir(parents=True)
    Path(job["kept"]).mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job, sort_keys=True), encoding="utf-8")


def _begun(folder: Path, default: float) -> float:
    """When the attempt was started, as the time of its job.json."""
    try:
        return (folder / "job.json").stat().st_mtime
    except FileNotFoundError:
        return default


def _progress(folder: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads((folder / "progress.json").read_bytes())
    except FileNotFoundError:
        return {}
    return said


def _rate(watch: _Watch) -> float | None:
    if not watch.first or watch.said["at"] <= watch.first["at"]:
        return None
    rate: float = (watch.said["done"] - watch.first["done"]) / (watch.said["at"] - watch.first["at"])
    return rate


def _eta_s(said: Mapping[str, Any], rate: float | None, expected_s: float | None, elapsed_s: float) -> float | None:
    if rate and said.get("total") is not None:
        return max(0.0, float(said["total"] - said["done"]) / rate)
    return None if expected_s is None else max(0.0, expected_s - elapsed_s)


def _failure(folder: Path, result: jobs.Result, data: Mapping[str, Any]) -> Failure:
    """Why the job ended without evidence, in words. data: of its step.intended."""
    said = None
    if result.outcome == "timeout":
        message = f"ran longer than timeout_s, {data['timeout_s']:g} s"
    elif result.outcome == "stalled":
        # Its own limit: the runbook's may be another by now, or none. Journals before 2026-12 do not tell it.
        limit = f", {data['stall_s']:g} s" if "stall_s" in data else ""
        message = f"no progress for stall_s{limit}"
    elif result.outcome == "stopped":
        message = "was asked to stop"
    elif result.outcome == "lost":
        message = "its supervisor was killed, or the host restarted"
    elif result.signal is not None:
        message = f"was killed by signal {result.signal}"
    else:
        message = f"ended with exit code {result.exit_code}"
        try:
            error = json.loads((folder / "error.json").read_bytes())
        except FileNotFoundError:
            return Failure(outcome=result.outcome, message=message)
        message = error["message"] if "where" in error else f"{error['type']}: {error['message']}"
        if "where" in error:
            said = {name: error[name] for name in ("where", "seen", "expected", "remedy")}
    return Failure(outcome=result.outcome, message=message, error=said)
