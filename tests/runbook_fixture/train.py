"""Step train: reads an input, and gives the same for every amount of seconds."""

from collections.abc import Mapping

from aerie.runbook.step import Context, Json
from tests.runbook_fixture.behaviour import begin, work

doc = "Count the words."


def run(context: Context) -> Mapping[str, Json]:
    """The share of the words that training used."""
    begin(context)
    values = context.values["train"]
    work(context, values["seconds"])
    words = len((context.inputs["fetch"].path / "data" / "words.txt").read_text(encoding="utf-8").split())
    (context.out / "model.bin").write_bytes(b"m" * words)
    return {"share": values["words"] / words}
