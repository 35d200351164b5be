"""A build on a host, from its controller: started there as a job, asked how far it is, and its result."""

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aerie.errors import AerieError
from aerie.remote.code import Code, Runner

from .onhost.request import Request, Result

if TYPE_CHECKING:
    from aerie.inventory import Host

__all__ = ["CODE", "JOBS", "start", "stop", "wait"]

JOBS = "/var/lib/aerie/jobs"
CODE = Code(
    "aerie.extensions.hostjob",
    (
        "errors.py", "runbook/hostjobs.py", "runbook/jobs.py", "runbook/supervise.py", "runbook/step.py",
        "extensions/__init__.py", "extensions/hostjob.py", "extensions/cgroups.py", "extensions/device_code.py",
        "extensions/_*.py", "extensions/onhost/*.py",
    ),
)  # fmt: skip
POLL_S = 2.0


def start(host: "Host", request: Request, key: str, *, runner: Runner | None = None) -> str:
    """Start the build on the host, or find the one that runs; the job's folder. key: names what is built, as a file."""
    folder = f"{JOBS}/build-{key}"
    _ask(host, ["start", folder], json.dumps(request.to_dict()).encode(), runner)
    return folder


def wait(
    host: "Host",
    folder: str,
    progress: Callable[[Mapping[str, Any]], None] = lambda record: None,
    *,
    runner: Runner | None = None,
) -> Result:
    """The result of a build once it ended. progress: called with progress.json about every two seconds.

    Raises the build's error, and AerieError for one that ended without a word. Whoever stops waiting stops no build.
    """
    while True:
        answer = _ask(host, ["poll", folder], b"", runner)
        if answer["progress"]:
            progress(answer["progress"])
        if answer["job"] != "running":
            break
        time.sleep(POLL_S)
    if answer["outcome"] is None:
        ended = (answer["result"] or {}).get("outcome", "lost")
        raise AerieError(
            f"host {host.name}: build",
            seen=" | ".join([ended, *answer["log"][-3:]]),
            expected="a result",
            remedy="Build again: what was compiled is in the compiler cache.",
        )
    result = Result.from_dict(answer["outcome"])
    if result.failure is not None:
        raise result.failure
    return result


def stop(host: "Host", folder: str, *, runner: Runner | None = None) -> None:
    """End the build; what was compiled is in the compiler cache."""
    _ask(host, ["stop", folder], b"", runner)


def _ask(host: "Host", arguments: list[str], stdin: bytes, runner: Runner | None) -> dict[str, Any]:
    answer = CODE.ask(host, arguments, stdin=stdin, runner=runner)
    if "error" in answer:
        told = answer["error"]
        raise AerieError(told["where"], seen=told["seen"], expected=told["expected"], remedy=told["remedy"])
    return answer
