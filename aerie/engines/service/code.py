"""What of aerie's own code runs services on a host."""

from aerie.probe import bundle
from aerie.remote.code import Code

__all__ = ["SERVICE"]

SERVICE = Code(
    "aerie.engines.service.onhost.main",
    (
        "errors.py", "runbook/hostjobs.py", "runbook/jobs.py", "runbook/supervise.py", "runbook/step.py",
        "weights/__init__.py", "weights/onhost/__init__.py", "weights/onhost/residency.py", "weights/onhost/warm.py",
        "engines/__init__.py", "engines/arguments.py", "engines/parser.py",
        "engines/acceptance.py", "engines/counts.py", "engines/intervals.py", "engines/capabilities.toml",
        "engines/benchmark/prompts.jsonl",
        "engines/service/__init__.py", "engines/service/onhost/*.py",
    ),
    more=lambda: {"probe.py": bundle.script()},
)  # fmt: skip
