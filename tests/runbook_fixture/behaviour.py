"""What a test makes a step do, by files in $QUICK_FOLDER.

`<step>.do` is Python that the step runs at its start; `ran` gets a line for each start.
"""

import os
import time
from pathlib import Path
from typing import Any

from aerie.runbook.step import Context


def begin(context: Context) -> Any:
    """Count the start, and do what the test asked for: its variable `evidence`, None unless it set one."""
    folder = Path(os.environ["QUICK_FOLDER"])
    with open(folder / "ran", "a", encoding="utf-8") as file:
        file.write(f"{context.step} {context.attempt} {os.getpid()}\n")
    script = folder / f"{context.step}.do"
    names: dict[str, Any] = {"context": context, "folder": folder}
    if script.exists():
        exec(compile(script.read_text(encoding="utf-8"), script, "exec"), names)
    return names.get("evidence")


def work(context: Context, seconds: float) -> None:
    """Pass the time in small parts, saying so."""
    parts = 5
    for part in range(parts):
        context.progress(part + 1, parts, unit="parts")
        time.sleep(seconds / parts)
