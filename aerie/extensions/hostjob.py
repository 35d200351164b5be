"""On a host: the builds that a controller asks for. Standard library only.

build SPEC FOLDER   the job itself; exit 1 where it came to no wheel
start FOLDER        spec (aerie.build/1) on stdin → {"job"}: a job that runs, this one or one that ran already
poll FOLDER         → {"job", "progress", "outcome", "log"}
stop FOLDER         → {"job"}: what was compiled is in the cache
"""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.errors import AerieError, UsageError
from aerie.extensions.onhost.build import build
from aerie.extensions.onhost.request import Request
from aerie.runbook import hostjobs

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Answer one question; its exit code."""
    verb, *rest = arguments
    try:
        if verb == "build":
            # Asked to stop: the enclosure is emptied and removed on the way out.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            return 0 if build(Request.parse(Path(rest[0]).read_bytes()), Path(rest[1])).error is None else 1
        if verb == "start":
            spec = sys.stdin.buffer.read()
            Request.parse(spec)
            document = hostjobs.start(Path(rest[0]), spec, "build")
        elif verb == "poll":
            document = hostjobs.poll(Path(rest[0]))
        elif verb == "stop":
            document = hostjobs.stop(Path(rest[0]))
        else:
            raise UsageError("verb", seen=verb, expected="build, start, poll or stop", remedy="")
    except AerieError as error:
        document = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(document) + "\n")
    return 0
