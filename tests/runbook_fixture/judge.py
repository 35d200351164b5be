"""Step judge: a gate on what training reached."""

from collections.abc import Mapping

from aerie.runbook.step import Context, Json, Verdict, go, stop
from tests.runbook_fixture.behaviour import begin

doc = "Compare the share with the limit."


def run(context: Context) -> Mapping[str, Json]:
    """The share, handed on."""
    begin(context)
    return {"share": context.inputs["train"].evidence["share"]}


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """The share is at least the limit."""
    if evidence["share"] < values["limit"]:
        return stop(f"share {evidence['share']}, allowed from {values['limit']}")
    return go(f"share {evidence['share']} reaches {values['limit']}")
