"""The planning module of the quick runbook, for the tests that give it one."""

from typing import Any

from aerie.runbook.budget import Budget, Measured


def budget(step: str, profile: Any, measured: Measured | None) -> Budget | None:
    if step != "fetch":
        return None
    seen = "never ran" if measured is None else f"{measured.evidence['words']} words before"
    return Budget(seconds=profile.fetch.words / 2, basis=(seen,))


def obstacle(step: str, profile: Any) -> str:
    return "999 words are too many" if step == "fetch" and profile.fetch.words == 999 else ""
