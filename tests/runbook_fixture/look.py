"""Step look: something every later step may rely on."""

import os
from collections.abc import Mapping
from pathlib import Path

from aerie.runbook.step import Context, Json
from tests.runbook_fixture.behaviour import begin

doc = "Look at the machine."


def run(context: Context) -> Mapping[str, Json]:
    """Nothing but evidence."""
    return begin(context) or {"machine": "here"}


def stale(evidence: Mapping[str, Json]) -> str | None:
    """Whether the machine is another one now, as the test says."""
    now = Path(os.environ["QUICK_FOLDER"]) / "machine"
    if now.exists() and (seen := now.read_text(encoding="utf-8")) != evidence["machine"]:
        return f"machine is {seen} now"
    return None
