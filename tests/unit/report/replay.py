"""A step that measures nothing: it leaves the recorded evidence of the step of its name."""

import json
from collections.abc import Mapping

from aerie.runbook.step import Context, Json
from tests.unit.recorded import RECORDED

doc = "Copy the recorded evidence."


def run(context: Context) -> Mapping[str, Json]:
    evidence: Mapping[str, Json] = json.loads((RECORDED / f"{context.step}.json").read_text())
    return evidence
