"""The report of one run, finished or not, from its journal record and its evidence files."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aerie.eagle3.summary import Evidence, Span, summarize
from aerie.errors import AerieError
from aerie.report import html
from aerie.runbook.runner import RunRecord, StepRecord
from aerie.runbook.step import Json, write_atomic

__all__ = ["Report", "build", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """summary: the JSON object. page: the HTML, whose links are relative to the folder it was built for."""

    summary: Mapping[str, Json]
    page: str


def build(record: RunRecord, folder: Path) -> Report:
    """The report, made to lie in `folder`. Reads evidence files, writes nothing.

    Raises AerieError for evidence that is no longer what the journal says: a report is never made of it.
    """
    made = [step for step in record.steps if step.folder]
    evidence = {step.id: _evidence(step) for step in made}
    summary = summarize(
        run=record.summary.run,
        runbook=record.summary.runbook,
        profile=record.summary.profile,
        values=_values(made),
        evidence=evidence,
        timeline=[_span(step) for step in record.steps],
        hashes={
            step.id: Evidence(path=os.path.relpath(_file(step), folder), sha256=step.evidence_sha256) for step in made
        },
        started_at=_seconds(record.summary.opened_at),
        wall_s=record.wall_s,
        state=record.summary.state,
    )
    return Report(summary=summary, page=html.page(summary, evidence))


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """report.json and report.html in `folder`, each whole or not at all; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / "report.json", folder / "report.html"
    write_atomic(data, json.dumps(report.summary, indent=1, ensure_ascii=False).encode() + b"\n")
    write_atomic(page, report.page.encode())
    return data, page


def _evidence(step: StepRecord) -> Mapping[str, Json]:
    try:
        data = _file(step).read_bytes()
    except OSError as error:
        seen = error.strerror or str(error)
    else:
        seen = hashlib.sha256(data).hexdigest()
        if seen == step.evidence_sha256:
            found: Mapping[str, Json] = json.loads(data)
            return found
    raise AerieError(
        f"evidence of step {step.id}, {_file(step)}",
        seen=seen,
        expected=f"sha256 {step.evidence_sha256}",
        remedy="Run the runbook again: it makes what does not hold anew.",
    )


def _file(step: StepRecord) -> Path:
    return Path(step.folder) / "evidence.json"


def _values(made: list[StepRecord]) -> dict[str, Json]:
    """The profile values that the steps were given, as they were given: the profile may have changed since."""
    values: dict[str, Json] = {}
    for step in made:
        job = Path(step.folder) / "job.json"
        if job.is_file():
            _merge(values, json.loads(job.read_bytes())["values"])
    return values


def _merge(into: dict[str, Json], more: Mapping[str, Json]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _span(step: StepRecord) -> Span:
    """A step that a gate holds is not "done" for who reads the report."""
    held = {"stop": "stopped", "wait": "waiting"}.get(step.decision)
    ran_here = step.state in ("done", "failed", "running")
    note = step.reason if ran_here else f"made by run {step.origin}" if step.state == "reused" else ""
    if held or step.decision == "approved":
        note = "gate: " + "; ".join(step.reasons)
    elif step.state == "failed":
        note = step.message
    return Span(
        step=step.id,
        title=step.title,
        state=held or step.state,
        started_at=_seconds(step.started_at) if ran_here else None,
        wall_s=step.seconds if step.state in ("done", "reused") else None,
        note=note,
    )


def _seconds(at: str) -> str | None:
    """A journal time without its milliseconds; None for none."""
    return f"{at[:19]}Z" if at else None
