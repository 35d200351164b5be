"""Findings: what differs between a lock and a host, with stable ids and remedies."""

from .catalogue import Row, rows
from .diff import diff
from .model import Finding, Fix, Severity

__all__ = ["Finding", "Fix", "Row", "Severity", "diff", "rows"]
