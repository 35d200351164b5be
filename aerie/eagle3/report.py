"""The run as one object and one page, and the last gate: did the drafter reach what the profile expects?"""

import hashlib
import json
import os
from collections.abc import Mapping

from aerie.eagle3.summary import Evidence, Span, expectations, summarize
from aerie.runbook.step import Context, Json, Verdict, go, stop, write_atomic

__all__ = ["doc", "gate", "run"]

doc = """\
Put the numbers of all steps on one page, the decision first: tokens per second without a drafter, accept length and
draft rate of both drafters, the measured and the predicted speed-up with their spread, R, parity, losslessness, the
diagnosis, the decision with its reasons, and what the run cannot decide. Beside every number name the evidence file
and its sha256, so that a reader can check it next year.

Then hold the fine-tuned drafter against `expect` of the profile for this target shape, and restate the two gates
before it: parity and losslessness. A run that misses any of them stops here, whatever it decided.
`invoke report RUN` makes the same page again from the journal, with the times of the steps.
"""


def run(context: Context) -> Mapping[str, Json]:
    """report.json and report.html in `out`; the summary is the evidence. Times come later, from the journal."""
    from aerie.report import html  # jinja2 takes 46 ms to import, and the gate below needs none of it

    evidence = {step: given.evidence for step, given in context.inputs.items()}
    summary = summarize(
        run=context.run,
        runbook="eagle3",
        profile=None,  # a step knows its values, not the name they were given under
        values=context.values,
        evidence=evidence,
        timeline=[Span(step=step, title="", state="done") for step in context.inputs],
        hashes=_hashes(context),
    )
    write_atomic(context.out / "report.json", json.dumps(summary, indent=1, ensure_ascii=False).encode() + b"\n")
    write_atomic(context.out / "report.html", html.page(summary, evidence).encode())
    return summary


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Stop for each part of the profile's expectation that was missed."""
    missed = expectations({**evidence, "expectation": values["expect"][evidence["target"]["shape"]["name"]]})
    if missed:
        return stop(*missed)
    finetuned, baseline = evidence["drafters"]["finetuned"], evidence["drafters"]["baseline"]
    return go(f"τ {finetuned['tau']:.3f} against {baseline['tau']:.3f} of the baseline drafter, as expected")


def _hashes(context: Context) -> dict[str, Evidence]:
    """The evidence files as they lie beside each input's artifacts."""
    found = {}
    for step, given in context.inputs.items():
        file = given.path.parent / "evidence.json"
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[step] = Evidence(path=os.path.relpath(file, context.out), sha256=digest)
    return found
