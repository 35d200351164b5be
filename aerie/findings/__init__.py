"""Findings: what differs between a lock and a host, with stable ids and remedies."""

from .model import Finding, Fix, Severity

__all__ = ["Finding", "Fix", "Severity"]
