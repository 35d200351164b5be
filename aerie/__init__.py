"""aerie: GPU hosts and the EAGLE-3 runbook, reproducible and decided by evidence."""

__version__ = "0.1.0"
