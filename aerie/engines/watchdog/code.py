"""The watchdog's own code as it is sent to a host."""

from aerie.remote.code import Code

__all__ = ["WATCHDOG"]

WATCHDOG = Code(
    "aerie.engines.watchdog.main",
    ("errors.py", "runbook/step.py", "engines/__init__.py", "engines/watchdog/*.py", "engines/watchdog/*.toml"),
)
