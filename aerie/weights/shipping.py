"""What of aerie's own code stages weights on a host, and the question that it answers there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aerie.remote.code import Code, Runner

if TYPE_CHECKING:
    from aerie.inventory import Host

__all__ = ["HOSTJOB", "JOBS", "Runner", "ask"]

JOBS = "/var/lib/aerie/jobs"
HOSTJOB = Code(
    "aerie.weights.hostjob",
    (
        "errors.py", "runbook/hostjobs.py", "runbook/jobs.py", "runbook/supervise.py", "runbook/step.py",
        "statement.py", "weights/__init__.py", "weights/hostjob.py", "weights/manifest.py", "weights/onhost/*.py",
    ),
)  # fmt: skip


def ask(
    host: "Host", arguments: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120, runner: Runner | None = None
) -> dict[str, Any]:
    """What aerie.weights.hostjob answers on the host, as root; as Code.ask."""
    return HOSTJOB.ask(host, arguments, stdin=stdin, timeout_s=timeout_s, runner=runner)
