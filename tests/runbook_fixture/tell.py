"""Step tell: the last one."""

from collections.abc import Mapping

from aerie.runbook.step import Context, Json
from tests.runbook_fixture.behaviour import begin

doc = "Write the report."


def run(context: Context) -> Mapping[str, Json]:
    """A report file."""
    begin(context)
    (context.out / "report.txt").write_text(f"{context.inputs['judge'].evidence['share']}\n", encoding="utf-8")
    return {"told": True}
