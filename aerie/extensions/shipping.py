"""What of aerie's own code brings extensions onto a host, and the questions that it answers there."""

from aerie.remote.code import Code

__all__ = ["HOSTJOB", "JOBS"]

JOBS = "/var/lib/aerie/jobs"
OWN = (
    "_elf", "_fatbin", "_source", "bringing", "bringjob", "capacity", "cgroups", "contents", "coverage",
    "crosscheck", "device_code", "environment", "fetching", "install", "receipt", "running", "sizing", "store",
)  # fmt: skip
HOSTJOB = Code(
    "aerie.extensions.bringjob",
    (
        "errors.py", "statement.py", "runbook/hostjobs.py", "runbook/jobs.py", "runbook/supervise.py",
        "runbook/step.py", "extensions/__init__.py", "extensions/onhost/*.py",
        *(f"extensions/{name}.py" for name in OWN),
    ),
)  # fmt: skip
