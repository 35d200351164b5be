"""Step fetch: an artifact from values."""

from collections.abc import Mapping

from aerie.runbook.step import Context, Json
from tests.runbook_fixture.behaviour import begin, work

doc = "Write words to a file."


def run(context: Context) -> Mapping[str, Json]:
    """`words` lines in data/words.txt."""
    begin(context)
    values = context.values["fetch"]
    work(context, values["seconds"])
    (context.out / "data").mkdir()
    (context.out / "data" / "words.txt").write_text("word\n" * values["words"], encoding="utf-8")
    return {"words": values["words"]}
